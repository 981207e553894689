// The modes of sequence parallelism, each listed once, as a type with everything in which it differs. Functions
// without LibTorch are in config.cpp, the exchange or switch in the file with the mode's name, the cost in
// attention_cost.cpp.
//
//   const auto exchange = with_sequence_mode(config, [&](auto mode) { return mode.exchange(mesh, config); });
#pragma once
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/comm/mesh.h"
#include "colossal/parallel/sequence/config.h"

namespace colossal::parallel {

class SequenceExchange;
struct AttentionCost;
struct AttentionSizes;
struct Layout;

/// Gathers keys and values of all ranks once per layer: Llama 3, arXiv:2407.21783, section 3.3.2.
struct SequenceGather {
  static constexpr const char* name = "gather";
  static std::vector<comm::Mesh::Axis> axes(const SequenceConfig&);
  /// Returns the number of ranks that exchange tokens for heads.
  static int64_t head_parts(const SequenceConfig&) { return 1; }
  static std::shared_ptr<const SequenceExchange> exchange(comm::Mesh&, const SequenceConfig&);
  static AttentionCost cost(const SequenceConfig&, const AttentionSizes&, int64_t rank);
};

/// Ranks exchange tokens for heads before attention, and back after it: DeepSpeed-Ulysses, arXiv:2309.14509.
struct SequenceUlysses {
  static constexpr const char* name = "ulysses";
  static std::vector<comm::Mesh::Axis> axes(const SequenceConfig&);
  static int64_t head_parts(const SequenceConfig& c) { return c.size; }
  static std::shared_ptr<const SequenceExchange> exchange(comm::Mesh&, const SequenceConfig&);
  static AttentionCost cost(const SequenceConfig&, const AttentionSizes&, int64_t rank);
};

/// Keys and values circulate among the ranks: a rank computes with one part while it receives the next. Ring
/// attention, arXiv:2310.01889.
struct SequenceRing {
  static constexpr const char* name = "ring";
  static std::vector<comm::Mesh::Axis> axes(const SequenceConfig&);
  static int64_t head_parts(const SequenceConfig&) { return 1; }
  static std::shared_ptr<const SequenceExchange> exchange(comm::Mesh&, const SequenceConfig&);
  static AttentionCost cost(const SequenceConfig&, const AttentionSizes&, int64_t rank);
};

/// Ulysses among neighbours inside a ring, axes "ring" and "ulysses": USP, arXiv:2405.07719.
struct SequenceUsp {
  static constexpr const char* name = "usp";
  static std::vector<comm::Mesh::Axis> axes(const SequenceConfig&);
  static int64_t head_parts(const SequenceConfig& c) { return c.ulysses; }
  static std::shared_ptr<const SequenceExchange> exchange(comm::Mesh&, const SequenceConfig&);
  static AttentionCost cost(const SequenceConfig&, const AttentionSizes&, int64_t rank);
};

/// The published algorithm with whole rows of scores: keys circulate first, then values. Li et al., arXiv:2105.13120.
struct SequenceSelfAttention {
  static constexpr const char* name = "ring-self-attention";
  static std::vector<comm::Mesh::Axis> axes(const SequenceConfig&);
  static int64_t head_parts(const SequenceConfig&) { return 1; }
  static std::shared_ptr<const SequenceExchange> exchange(comm::Mesh&, const SequenceConfig&);
  static AttentionCost cost(const SequenceConfig&, const AttentionSizes&, int64_t rank);
};

/// Hidden states have two axes, and blocks attend over one at a time: ranks split the other one, and a switch moves the
/// split (nn::AxisSwitch). Dynamic sequence parallelism, arXiv:2403.10266.
struct SequenceDsp {
  static constexpr const char* name = "dsp";
  static std::vector<comm::Mesh::Axis> axes(const SequenceConfig&);
  static int64_t head_parts(const SequenceConfig&) { return 1; }
  /// Returns `layout`, whose axes of tokens are those of the mode, with the switch.
  static Layout layout(Layout layout, const SequenceConfig&);
};

/// Ranks cut the representations of a folding model, along either of two axes (nn::AxialRanks). Dynamic axial
/// parallelism, arXiv:2203.00854.
struct SequenceAxial {
  static constexpr const char* name = "axial";
  static std::vector<comm::Mesh::Axis> axes(const SequenceConfig&);
  static int64_t head_parts(const SequenceConfig&) { return 1; }
  /// Returns `layout`, whose axes of tokens are those of the mode, with its ranks.
  static Layout layout(Layout layout, const SequenceConfig&);
};

/// The modes for models of one sequence, in which an exchange meets queries with keys.
using SequenceModes = std::tuple<SequenceGather, SequenceUlysses, SequenceRing, SequenceUsp, SequenceSelfAttention>;
/// All modes, with those for models of two axes and for folding models.
using AllSequenceModes = decltype(std::tuple_cat(SequenceModes(), std::tuple<SequenceDsp, SequenceAxial>()));

/// Calls visit(mode) for each of the modes, in the order of the list.
template <class Modes = SequenceModes, class Visit>
void for_each_sequence_mode(const Visit& visit) {
  std::apply([&](auto... mode) { (visit(mode), ...); }, Modes());
}

/// Returns visit(mode) for that one of the modes that `config` names. Errors ("parallel"): it names none.
template <class Modes = SequenceModes, class Visit>
auto with_sequence_mode(const SequenceConfig& config, const Visit& visit) {
  std::vector<decltype(visit(SequenceGather()))> result;
  std::vector<std::string> names;
  for_each_sequence_mode<Modes>([&](auto mode) {
    names.emplace_back(mode.name);
    if (config.mode == mode.name) result.push_back(visit(mode));
  });
  require(!result.empty(), "parallel", "sequence.mode must be one of ", join(names), ": got ", config.mode);
  return std::move(result.front());
}

}  // namespace colossal::parallel
