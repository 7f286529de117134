// Runs recorded calls of an operator outside Python, for the sanitisers: every tensor gets memory of exactly its size.
//
// Usage: driver RECORD...   with records as written by sanitize.py. All numbers in them are 64-bit.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Field {
  int64_t value = 0;  // of an integer; of a tensor, its size
  bool is_tensor = false;
  std::vector<char> expected;    // what the tensor held after the recorded call
  std::unique_ptr<char[]> data;  // what it holds now
};

class Record {
 public:
  explicit Record(const char* path) : file_(std::fopen(path, "rb")) {
    if (!file_) fail("cannot open the record");
    const int64_t length = number();
    function.resize(length);
    read(function.data(), length);
    structures.resize(number());
    for (auto& structure : structures) {
      structure.resize(number());
      for (Field& field : structure) read_field(field);
    }
    std::fclose(file_);
  }

  std::string function;
  std::vector<std::vector<Field>> structures;

  [[noreturn]] static void fail(const std::string& why) {
    std::fprintf(stderr, "driver: %s\n", why.c_str());
    std::exit(1);
  }

 private:
  void read(void* to, size_t size) {
    if (size && std::fread(to, 1, size, file_) != size) fail("the record ends too early");
  }
  int64_t number() {
    int64_t value = 0;
    read(&value, sizeof(value));
    return value;
  }
  void read_field(Field& field) {
    field.is_tensor = number() != 0;
    field.value = number();
    if (!field.is_tensor || field.value == 0) return;
    field.data = std::make_unique<char[]>(field.value);
    field.expected.resize(field.value);
    read(field.data.get(), field.value);
    read(field.expected.data(), field.value);
  }

  std::FILE* file_;
};

// Squared norms of what the recorded call wrote, and of how far this one is from it.
struct Distance {
  double difference = 0, size = 0;

  void add(const Field& field) {
    for (size_t at = 0; at + sizeof(float) <= field.expected.size(); at += sizeof(float)) {
      float actual, expected;
      std::memcpy(&actual, field.data.get() + at, sizeof(float));
      std::memcpy(&expected, field.expected.data() + at, sizeof(float));
      if (std::memcmp(&actual, &expected, sizeof(float)) == 0) continue;
      difference += std::pow(static_cast<double>(actual) - expected, 2);
      size += std::pow(static_cast<double>(expected), 2);
    }
  }
};

void replay(const char* path) {
  Record record(path);
  std::vector<std::vector<int64_t>> words;
  for (auto& structure : record.structures) {
    auto& row = words.emplace_back();
    for (Field& field : structure)
      row.push_back(field.is_tensor ? reinterpret_cast<int64_t>(field.data.get()) : field.value);
  }
  while (words.size() < 4) words.emplace_back(1);
  using Entry = int (*)(void*, void*, void*, void*);
  const auto entry = reinterpret_cast<Entry>(dlsym(RTLD_DEFAULT, record.function.c_str()));
  if (!entry) Record::fail("no function " + record.function);
  if (entry(words[0].data(), words[1].data(), words[2].data(), words[3].data()) != 0)
    Record::fail("a call was refused");
  Distance distance;
  for (const auto& structure : record.structures)
    for (const Field& field : structure)
      if (field.is_tensor) distance.add(field);
  // the sanitised code rounds differently, no more
  if (!(distance.difference <= 1e-6 * distance.size)) Record::fail(std::string(path) + ": other results than recorded");
}

}  // namespace

int main(int count, char** paths) {
  for (int k = 1; k < count; ++k) replay(paths[k]);
  std::printf("%d calls replayed\n", count - 1);
}
