// Draws a toy made of parts: rays are marched along signed distances, then lit, with soft shadows and darker corners.
// Called by draw_toys.py, which says what the numbers of a part are.
#include <algorithm>
#include <cmath>

namespace {

struct Vec {
    float x, y, z;
};
Vec operator+(Vec a, Vec b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
Vec operator-(Vec a, Vec b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
Vec operator*(Vec a, float k) { return {a.x * k, a.y * k, a.z * k}; }
float dot(Vec a, Vec b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
Vec cross(Vec a, Vec b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }
Vec unit(Vec a) { return a * (1.0f / std::sqrt(dot(a, a) + 1e-12f)); }

enum Kind { BOX, BALL, CYLINDER };
struct Part {
    float kind, x, y, z, half_x, half_y, half_z, round, axes[9], taper_x, taper_y, cut, blend;
};
struct Toy {
    const Part* parts;
    int count;
    float bump, ripple;  // how high and how dense bumps of the surface are
};

// Distance of a point to a part, negative inside.
float distance(const Part& part, Vec point) {
    const Vec d{point.x - part.x, point.y - part.y, point.z - part.z};
    const float* a = part.axes;  // columns are the part's own axes
    const Vec p{a[0] * d.x + a[3] * d.y + a[6] * d.z, a[1] * d.x + a[4] * d.y + a[7] * d.z,
                a[2] * d.x + a[5] * d.y + a[8] * d.z};
    float hx = part.half_x, hy = part.half_y, hz = part.half_z;
    const float round = part.round;
    if (part.taper_x != 0 || part.taper_y != 0) {
        const float up = (std::min(1.0f, std::max(-1.0f, p.z / (hz + 1e-6f))) + 1) * 0.5f;
        hx *= 1 - part.taper_x * up;
        hy *= 1 - part.taper_y * up;
    }
    if (part.kind == BALL) {
        const Vec s{p.x / hx, p.y / hy, p.z / hz};
        const float near = std::sqrt(dot(s, s));
        const Vec t{s.x / hx, s.y / hy, s.z / hz};
        return near < 1e-4f ? -std::min(hx, std::min(hy, hz)) : near * (near - 1) / std::sqrt(dot(t, t));
    }
    if (part.kind == CYLINDER) {  // about its y axis
        const float r = std::sqrt(p.x * p.x + p.z * p.z) - hx + round, w = std::fabs(p.y) - hy + round;
        const float out_r = std::max(r, 0.0f), out_w = std::max(w, 0.0f);
        return std::min(std::max(r, w), 0.0f) + std::sqrt(out_r * out_r + out_w * out_w) - round;
    }
    const float x = std::fabs(p.x) - hx + round, y = std::fabs(p.y) - hy + round, z = std::fabs(p.z) - hz + round;
    const float ox = std::max(x, 0.0f), oy = std::max(y, 0.0f), oz = std::max(z, 0.0f);
    return std::sqrt(ox * ox + oy * oy + oz * oz) + std::min(std::max(x, std::max(y, z)), 0.0f) - round;
}

// Whether a part is too far from a point to change the distance found so far.
bool beyond(const Part& part, Vec point, float found) {
    if (found >= 1e8f) return false;
    const Vec d{point.x - part.x, point.y - part.y, point.z - part.z};
    const float size = std::sqrt(part.half_x * part.half_x + part.half_y * part.half_y + part.half_z * part.half_z);
    const float limit = (part.cut != 0 ? std::max(-found, 0.0f) : found + part.blend) + size;
    return limit > 0 && dot(d, d) > limit * limit;
}

float distance(const Toy& toy, Vec point) {
    float found = 1e9f;
    for (int i = 0; i < toy.count; i++) {
        const Part& part = toy.parts[i];
        if (beyond(part, point, found)) continue;
        const float d = distance(part, point);
        if (part.cut != 0) {
            found = std::max(found, -d);
        } else if (part.blend > 0) {
            const float h = std::max(part.blend - std::fabs(found - d), 0.0f) / part.blend;
            found = std::min(found, d) - h * h * part.blend * 0.25f;
        } else {
            found = std::min(found, d);
        }
    }
    if (found < 0.05f && toy.bump > 0)
        found += toy.bump * std::sin(toy.ripple * point.x) * std::sin(toy.ripple * point.y + 1) *
                 std::sin(toy.ripple * point.z + 2);
    return found;
}

// How far along a ray the toy is, or -1; only what lies in the sphere around it is looked at.
float hit(const Toy& toy, Vec eye, Vec ray, Vec centre, float radius) {
    const Vec away = eye - centre;
    const float b = dot(away, ray), within = b * b - (dot(away, away) - radius * radius);
    if (within <= 0) return -1;
    float t = -b - std::sqrt(within);
    const float end = -b + std::sqrt(within);
    for (int step = 0; step < 70 && t < end; step++) {
        const float d = distance(toy, eye + ray * t);
        if (d < 0.004f) return t;
        t += std::max(d * 0.8f, 0.004f);
    }
    return -1;
}

// 1 in the light, 0 in the shadow of the toy, between where something is near the way to the light.
float lit(const Toy& toy, Vec from, Vec light, Vec centre, float radius, float soft) {
    float open = 1, t = 0.03f;
    for (int step = 0; step < 18 && t < 1.8f; step++) {
        const Vec point = from + light * t, away = point - centre;
        if (dot(away, away) > radius * radius && dot(away, light) > 0) break;
        const float d = distance(toy, point);
        open = std::min(open, std::max(0.0f, 0.5f + soft * d / t));
        if (open < 0.02f) break;
        t += std::max(d, 0.04f);
    }
    return open;
}

// Less light comes into corners: near other surfaces, distances grow more slowly than the way from one's own.
float openness(const Toy& toy, Vec point, Vec normal, bool ground) {
    float closed = 0, weight = 1;
    for (int i = 1; i <= 4; i++) {
        const float way = 0.06f * i;
        const Vec there = point + normal * way;
        const float d = distance(toy, there);
        closed += (way - std::min(d, ground ? way : there.z)) * weight;
        weight *= 0.6f;
    }
    return std::max(0.0f, 1 - 1.1f * closed);
}

}  // namespace

// camera: eye, what it looks at, half the picture's width at distance 1, offsets of its centre (9 numbers)
// lights: direction and strength of each; look: ambient light, brightness of toy and ground, gloss, softness of shadows
// around: centre and radius of a sphere around the toy
extern "C" void draw(const float* parts, int count, float bump, float ripple, const float* camera, const float* lights,
                     int light_count, const float* look, const float* around, int side, float* picture) {
    const Toy toy{reinterpret_cast<const Part*>(parts), count, bump, ripple};
    const Vec eye{camera[0], camera[1], camera[2]}, target{camera[3], camera[4], camera[5]};
    const Vec centre{around[0], around[1], around[2]};
    const float ambient = look[0], gloss = look[3], soft = look[4], radius = around[3];
    const Vec ahead = unit(target - eye), right = unit(cross(ahead, Vec{0, 0, 1})), up = cross(right, ahead);
    for (int row = 0; row < side; row++) {
        for (int column = 0; column < side; column++) {
            const float sx = ((column + 0.5f) / side * 2 - 1) * camera[6] + camera[7];
            const float sy = (1 - (row + 0.5f) / side * 2) * camera[6] + camera[8];
            const Vec ray = unit(ahead + right * sx + up * sy);
            const float floor = -eye.z / ray.z, found = hit(toy, eye, ray, centre, radius);
            const bool ground = found < 0 || (floor > 0 && floor < found);
            const Vec point = eye + ray * (ground ? floor : found);
            Vec normal{0, 0, 1};
            if (!ground) {
                const float e = 0.006f, d = distance(toy, point);
                normal = unit(Vec{distance(toy, point + Vec{e, 0, 0}) - d, distance(toy, point + Vec{0, e, 0}) - d,
                                  distance(toy, point + Vec{0, 0, e}) - d});
            }
            float light = ambient * openness(toy, point, normal, ground), open_ground = ambient;
            for (int i = 0; i < light_count; i++) {
                const Vec from{lights[4 * i], lights[4 * i + 1], lights[4 * i + 2]};
                const float strength = lights[4 * i + 3], facing = std::max(0.0f, dot(normal, from));
                const float open = facing > 0 ? lit(toy, point + normal * 0.01f, from, centre, radius, soft) : 1;
                light += strength * facing * open;
                open_ground += strength * from.z;
                if (!ground && gloss > 0)
                    light += gloss * strength * std::pow(std::max(0.0f, dot(normal, unit(from - ray))), 20.0f) * open;
            }
            picture[row * side + column] = look[ground ? 2 : 1] * light / (open_ground + 1e-6f);
        }
    }
}
