#include "colossal/optim/logical_tensors.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/reduce.h"
#include "colossal/tensor/host_value.h"

namespace colossal::optim {

LogicalTensors::LogicalTensors(const nn::Parameters& parameters, comm::Mesh& mesh,
                               std::optional<at::Device> borrow_device)
    : mesh_(mesh),
      model_device_(parameters.options().device),
      device_(borrow_device.value_or(model_device_)),
      model_type_(parameters.options().dtype) {
  std::map<std::string, const nn::Parameter*> trained;
  for (const nn::Parameter& p : parameters.declared()) {
    const bool is_trained = p.value.defined() ? p.value.requires_grad() : p.treatment.trains;
    require(is_trained == p.treatment.trains || mesh.size("pipeline") == 1, "optimizer", p.name,
            is_trained ? " is trained" : " is not trained",
            ", which the other stages of a pipeline cannot know: say so in nn::Parameters::Options::treatment, which "
            "every rank asks, and leave requires_grad as it is");
    if (is_trained) trained[p.name] = &p;
  }
  for (const auto& [name, parameter] : trained) {
    index_[name] = entries_.size();
    entries_.push_back({name, parameter->spec, parameter->hidden_matrix});
  }
  for (const nn::Parameter& p : parameters.declared())
    if (trained.count(p.name)) as_declared_.push_back(index_.at(p.name));
  std::vector<double> roots;
  for (const Entry& entry : entries_) {
    int64_t elements = 1;
    for (const int64_t length : entry.spec.shape) elements *= length;
    roots.push_back(std::sqrt(static_cast<double>(elements)));
  }
  roots_of_sizes_ = at::tensor(roots, at::kDouble).to(device_);
}

at::Tensor LogicalTensors::zeros() const {
  return at::zeros({static_cast<int64_t>(entries_.size())}, at::dtype(at::kDouble).device(device_));
}

void LogicalTensors::add_squares(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer,
                                 at::Tensor& squares) const {
  const auto of_tensor = [&](const memory::Piece& piece) {
    return squares.select(0, static_cast<int64_t>(index(*piece.parameter)));
  };
  if (!ops::sums_at_once(buffer)) {
    for (const memory::Piece& piece : pieces)
      of_tensor(piece).add_(memory::counted_squares(buffer, piece, mesh_.coordinates()));
    return;
  }
  std::vector<at::Tensor> parts, sums;
  for (const memory::Piece& piece : pieces)
    for (const at::Tensor& part : memory::counted_parts(buffer, piece, mesh_.coordinates())) {
      parts.push_back(part);
      sums.push_back(of_tensor(piece));
    }
  const std::vector<at::Tensor> norms = ops::norms(parts, 2);
  for (size_t i = 0; i < norms.size(); ++i) sums[i].addcmul_(norms[i], norms[i]);
}

at::Tensor LogicalTensors::norms(const std::vector<at::Tensor>& squares) const {
  at::Tensor sums = at::stack(squares);
  mesh_.all().all_reduce(sums, comm::Reduce::Sum).wait();
  return sums.sqrt_();
}

TensorFactors::TensorFactors(const at::Tensor& factors) : factors_(factors) {
  if (factors.is_cpu()) known_ = tensor::host_values(factors);
}

double TensorFactors::take(const at::Tensor& x, size_t tensor) const {
  if (factors_.is_cpu()) return known_[tensor];
  at::Tensor(x).mul_(factors_.select(0, static_cast<int64_t>(tensor)));
  return 1;
}

}  // namespace colossal::optim
