// Movements of a tensor's data with their prices, and the cheapest way from one spec of a tensor to another.
//
//   const plan::Conversion path = plan::convert(plan::TensorType{{16, 8}}, from, to, mesh, links);
//   for (const plan::Call& call : path.calls) std::puts(plan::name_of(call.movement));
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "colossal/plan/graph.h"
#include "colossal/plan/links.h"
#include "colossal/plan/specs.h"

namespace colossal::plan {

/// A way to change how one axis divides a tensor: a slice, which keeps a block of what the rank has and sends nothing,
/// or a collective. Collective (base/collective.h) has the calls that ranks can make, these among them.
enum class Movement : uint8_t { Slice, AllReduce, AllGather, ReduceScatter, AllToAll };
/// Returns the name that comm::Traffic counts a collective under ("all_reduce"), or "slice".
const char* name_of(Movement movement);

/// One movement over one axis.
struct Call {
  Movement movement = Movement::Slice;
  int axis = 0;        ///< index in Mesh::axes
  int64_t bytes = 0;   ///< bytes that a rank sends
  double seconds = 0;  ///< with the latency of its hops and the start of an operator
  bool in_backward = false;
  int dim = -1;        ///< all_gather and reduce_scatter of a strategy: dimension of the tensor; otherwise -1
  std::string tensor;  ///< name of the tensor, or "" within a conversion
  Spec result;         ///< spec after the call; empty outside a conversion
};

/// Returns the price of a movement over an axis of `size` ranks. `local_bytes` is what a rank has before the call.
/// All-reduce sends 2 (size - 1) / size of it, all-gather size - 1 times as much, reduce-scatter and all-to-all
/// (size - 1) / size of it. A slice is free. Source: ring algorithms.
Call price(Movement movement, int axis, int64_t local_bytes, const Mesh& mesh, const Links& links);

/// Steps from one spec to another, and their sum.
struct Conversion {
  std::vector<Call> calls;
  double seconds = 0;
  int64_t bytes = 0;  ///< bytes that a rank sends
};

/// Returns the fastest path from one legal spec to another; of equally fast ones that with the fewest calls. A step
/// slices a dimension by a further axis, gathers the last axis of a dimension, or moves that axis to the end of another
/// dimension by all_to_all. Cost: Dijkstra's algorithm over the legal specs, at most 25 for two axes and four
/// dimensions. Errors ("plan"): a spec is not legal for the shape.
Conversion convert(const TensorType& type, const Spec& from, const Spec& to, const Mesh& mesh, const Links& links);

/// A cache of convert() for one mesh. Not thread-safe.
class Conversions {
 public:
  Conversions(Mesh mesh, Links links) : mesh_(std::move(mesh)), links_(std::move(links)) {}
  const Conversion& get(const TensorType& type, const Spec& from, const Spec& to);

 private:
  struct Key {
    std::vector<int64_t> shape;
    int64_t element_bytes;
    Spec from, to;
    auto operator<=>(const Key&) const = default;
  };
  Mesh mesh_;
  Links links_;
  std::map<Key, Conversion> known_;
};

}  // namespace colossal::plan
