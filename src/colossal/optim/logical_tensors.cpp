#include "colossal/optim/logical_tensors.h"

#include <ATen/ATen.h>

#include "colossal/tensor/host_value.h"

namespace colossal::optim {

LogicalTensors::LogicalTensors(const nn::Parameters& parameters, comm::Mesh& mesh) : mesh_(mesh) {
  std::map<std::string, const nn::Parameter*> trained;
  for (const nn::Parameter& p : parameters.declared())
    if (!p.value.defined() || p.value.requires_grad()) trained[p.name] = &p;
  for (const auto& [name, parameter] : trained) {
    index_[name] = entries_.size();
    entries_.push_back({name, parameter->spec.shape});
  }
}

at::Tensor LogicalTensors::counted_squares(const std::vector<memory::Shard>& shards,
                                           const std::vector<at::Tensor>& buffers) const {
  std::vector<at::Tensor> sums;  // of pieces, on their device
  std::vector<size_t> of;
  for (size_t i = 0; i < shards.size(); ++i)
    for (const memory::Piece& piece : shards[i].pieces) {
      sums.push_back(memory::counted_squares(buffers[i], piece, mesh_.place()));
      of.push_back(index(*piece.parameter));
    }
  at::Tensor squares = at::zeros({static_cast<int64_t>(entries_.size())}, at::kDouble);
  if (sums.empty()) return squares;
  const std::vector<double> values = tensor::host_values(at::stack(sums));
  auto* sum = squares.mutable_data_ptr<double>();
  for (size_t i = 0; i < values.size(); ++i) sum[of[i]] += values[i];
  return squares;
}

std::vector<std::vector<double>> LogicalTensors::norms(const std::vector<at::Tensor>& squares) const {
  at::Tensor sums = at::stack(squares);
  mesh_.all().all_reduce(sums, comm::Reduce::Sum).wait();
  sums.sqrt_();
  std::vector<std::vector<double>> norms;
  for (size_t k = 0; k < squares.size(); ++k) {
    const auto* of_tensors = sums.const_data_ptr<double>() + k * entries_.size();
    norms.emplace_back(of_tensors, of_tensors + entries_.size());
  }
  return norms;
}

std::vector<at::Tensor> values_of(const std::vector<memory::Shard>& shards) {
  std::vector<at::Tensor> buffers;
  for (const memory::Shard& shard : shards) buffers.push_back(shard.values);
  return buffers;
}

std::vector<at::Tensor> gradients_of(const std::vector<memory::Shard>& shards) {
  std::vector<at::Tensor> buffers;
  for (const memory::Shard& shard : shards) buffers.push_back(shard.gradients);
  return buffers;
}

}  // namespace colossal::optim
