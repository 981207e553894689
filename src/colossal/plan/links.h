// The numbers of a device and of the links of a mesh that prices are computed from.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/plan/specs.h"

namespace colossal::plan {

/// The link between the ranks of one axis of a mesh.
struct Link {
  double latency = 4e-6;    ///< seconds of each hop of a collective
  double bandwidth = 4e11;  ///< bytes per second that a rank sends
};

/// One device, and one link for each axis of the mesh in its order. The defaults are an H100 in a node of eight:
/// two fifths of its bf16 peak for products, NVLink for every axis.
struct Links {
  double operations = 4e14;           ///< floating-point operations per second of matrix products
  double memory_bandwidth = 3.35e12;  ///< bytes per second of device memory
  double start = 5e-6;                ///< seconds to start an operator
  std::vector<Link> axes{{}, {}};

  /// Returns the link of an axis. Axes beyond the list have the last link.
  const Link& link(size_t axis) const { return axes[axis < axes.size() ? axis : axes.size() - 1]; }
};

class Cluster;

/// Returns the numbers of a cluster for products in bf16 and for the axes of a mesh. Ranks fill nodes in order, and the
/// last axis numbers neighbours, so `data=2,tensor=8` has its tensor axis inside nodes of eight. The link of an axis is
/// that of its all_gather: seconds = latency x (ranks - 1) + bytes sent / bandwidth.
/// Errors ("cluster"): the profile has no link that an axis needs.
Links links_of(const Cluster& cluster, const Mesh& mesh);

}  // namespace colossal::plan
