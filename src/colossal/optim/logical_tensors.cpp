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
    entries_.push_back({name, parameter->spec, parameter->hidden_matrix});
  }
}

at::Tensor LogicalTensors::zeros() const { return at::zeros({static_cast<int64_t>(entries_.size())}, at::kDouble); }

void LogicalTensors::add_squares(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer,
                                 at::Tensor& squares) const {
  if (pieces.empty()) return;
  std::vector<at::Tensor> sums;  // on their device, read together
  for (const memory::Piece& piece : pieces) sums.push_back(memory::counted_squares(buffer, piece, mesh_.place()));
  const std::vector<double> values = tensor::host_values(at::stack(sums));
  auto* sum = squares.mutable_data_ptr<double>();
  for (size_t i = 0; i < values.size(); ++i) sum[index(*pieces[i].parameter)] += values[i];
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

}  // namespace colossal::optim
