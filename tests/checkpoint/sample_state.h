// A training state with one tensor of every kind of split, and its part on each rank of a data x tensor layout.
#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "colossal/checkpoint/box.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/group.h"
#include "colossal/comm/run_ranks.h"

namespace colossal::checkpoint {

struct Layout {
  int data = 1, tensor = 1;
  int ranks() const { return data * tensor; }
  tensor::MeshCoordinates coordinates(int rank) const {
    return tensor::MeshCoordinates(
        {{"data", data, rank / tensor, tensor::BatchSplit::Rows}, {"tensor", tensor, rank % tensor}});
  }
};

/// Calls fn(group of all ranks, coordinates) on each rank of the layout.
inline void on_layout(const Layout& layout,
                      const std::function<void(comm::Group&, const tensor::MeshCoordinates&)>& fn) {
  comm::run_ranks(layout.ranks(), [&](comm::World& world) {
    std::vector<int> all(world.size());
    for (int rank = 0; rank < world.size(); ++rank) all[rank] = rank;
    fn(*world.make_group("world", all), layout.coordinates(world.rank()));
  });
}

inline std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (int data : {1, 2, 4})
    for (int tensor : {1, 2, 4}) all.push_back({data, tensor});
  return all;
}

/// Returns values that are exact in bf16 and repeat only after 127 elements. The first is a negative zero if `dtype`
/// has one. `salt` shifts the sequence of values.
inline at::Tensor sample_values(const std::vector<int64_t>& shape, at::ScalarType dtype, int64_t salt) {
  at::Tensor values = at::arange(Box{{}, shape}.numel(), at::kDouble).add(salt).remainder(127).sub(3).mul(0.5);
  values = values.to(dtype).view(shape).contiguous();
  values.view({-1})[0] = -0.0;
  return values;
}

/// Returns the part of `whole` that the rank at `coordinates` holds under `spec`; padding is zero.
inline at::Tensor local_part(const at::Tensor& whole, const tensor::ShardSpec& spec,
                             const tensor::MeshCoordinates& coordinates) {
  at::Tensor local = at::zeros(spec.local_shape(coordinates), whole.options());
  for (const tensor::LocalBox& block : spec.local_boxes(coordinates))
    at_box(local, {block.local_start, block.size}).copy_(at_box(whole, {block.start, block.size}));
  return local;
}

struct Sample {
  std::string name;
  tensor::ShardSpec spec;
  at::ScalarType dtype;
};

inline std::vector<Sample> samples() {
  using tensor::ShardSpec;
  const std::vector<std::string> axes{"tensor"};
  const std::vector<tensor::Segment> heads{{12, 3}, {6, 3, true}, {6, 3, true}};  // 4 query, 2 key and 2 value heads
  return {{"embedding.weight", ShardSpec::split({11, 6}, 0, axes), at::kFloat},   // 11 rows: padding on 2 and 4 ranks
          {"blocks.0.attention.qkv.weight", ShardSpec::split({24, 6}, 0, axes, heads), at::kBFloat16},
          {"blocks.0.attention.qkv.bias", ShardSpec::split({24}, 0, axes, heads), at::kDouble},
          {"blocks.0.mlp.down.weight", ShardSpec::split({6, 8}, 1, axes), at::kFloat},
          {"norm.weight", ShardSpec::whole({6}), at::kFloat},
          {"tokens_seen", ShardSpec::whole({}), at::kLong},
          {"optimizer.first_moment/embedding.weight", ShardSpec::split({11, 6}, 0, axes), at::kFloat}};
}

inline TrainingState sample_state(const tensor::MeshCoordinates& coordinates, int64_t salt = 0) {
  TrainingState state;
  for (const Sample& sample : samples()) {
    const at::Tensor whole = sample_values(sample.spec.shape, sample.dtype, salt++);
    state.tensors.push_back({sample.name, local_part(whole, sample.spec, coordinates), sample.spec});
  }
  state.progress = {{"salt", salt}, {"loss", 0.1}, {"seed", 18446744073709551615u}, {"data", {{"epoch", 3}}}};
  return state;
}

inline TrainingState filled(TrainingState state, double value) {
  for (NamedTensor& tensor : state.tensors) tensor.value.write().value.fill_(value);
  state.progress = nullptr;
  return state;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

inline bool same_bits(const TrainingState& a, const TrainingState& b) {
  bool same = a.tensors.size() == b.tensors.size() && a.progress == b.progress;
  for (size_t i = 0; same && i < a.tensors.size(); ++i)
    same = same_bits(a.tensors[i].value.clone(), b.tensors[i].value.clone());
  return same;
}

}  // namespace colossal::checkpoint
