#include "colossal/optim/logical_tensors.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/tensor/host_value.h"

namespace colossal::optim {

LogicalTensors::LogicalTensors(const nn::Parameters& parameters, comm::Mesh& mesh)
    : mesh_(mesh), device_(parameters.options().device) {
  std::map<std::string, const nn::Parameter*> trained;
  for (const nn::Parameter& p : parameters.declared()) {
    const bool is_trained = !p.value.defined() || p.value.requires_grad();
    require(is_trained || mesh.size("pipeline") == 1, "optimizer", p.name,
            " is not trained, which the other stages of a pipeline cannot know: train it (requires_grad), or use "
            "parallel.pipeline.size = 1");
    if (is_trained) trained[p.name] = &p;
  }
  for (const auto& [name, parameter] : trained) {
    index_[name] = entries_.size();
    entries_.push_back({name, parameter->spec, parameter->hidden_matrix});
  }
  for (const nn::Parameter& p : parameters.declared())
    if (trained.count(p.name)) as_declared_.push_back(index_.at(p.name));
}

at::Tensor LogicalTensors::zeros() const {
  return at::zeros({static_cast<int64_t>(entries_.size())}, at::dtype(at::kDouble).device(device_));
}

void LogicalTensors::add_squares(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer,
                                 at::Tensor& squares) const {
  for (const memory::Piece& piece : pieces)
    squares.select(0, static_cast<int64_t>(index(*piece.parameter)))
        .add_(memory::counted_squares(buffer, piece, mesh_.place()));
}

std::vector<std::vector<double>> LogicalTensors::norms(const std::vector<at::Tensor>& squares) const {
  at::Tensor sums = at::stack(squares);
  mesh_.all().all_reduce(sums, comm::Reduce::Sum).wait();
  const std::vector<double> values = tensor::host_values(sums.sqrt_());
  const auto tensors = static_cast<std::ptrdiff_t>(entries_.size());
  std::vector<std::vector<double>> norms;
  auto of_tensors = values.begin();
  for (size_t k = 0; k < squares.size(); ++k, of_tensors += tensors)
    norms.emplace_back(of_tensors, of_tensors + tensors);
  return norms;
}

}  // namespace colossal::optim
