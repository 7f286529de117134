"""What a network does, as arrays: consensus on toy votes, couplings, credit, equivariance. Nothing here draws."""

from __future__ import annotations

from capsroute.analysis.crediting import Credit, background, coupling_maps, credit, hide, hiding, most_credited
from capsroute.analysis.equivariance import Equivariance, Path, affine, affine_frames, follow, measure, viewpoints
from capsroute.analysis.kernels import KernelProfile, kernel_profiles
from capsroute.analysis.subject import Subject, open_subject
from capsroute.analysis.toy import Cluster, Consensus, Toy, consensus, responsibilities, sample
from capsroute.analysis.tracing import LayerTrace, capsule_network, trace

__all__ = [
    "Cluster",
    "Consensus",
    "Credit",
    "Equivariance",
    "KernelProfile",
    "LayerTrace",
    "Path",
    "Subject",
    "Toy",
    "affine",
    "affine_frames",
    "background",
    "capsule_network",
    "consensus",
    "coupling_maps",
    "credit",
    "follow",
    "hide",
    "hiding",
    "kernel_profiles",
    "measure",
    "most_credited",
    "open_subject",
    "responsibilities",
    "sample",
    "trace",
    "viewpoints",
]
