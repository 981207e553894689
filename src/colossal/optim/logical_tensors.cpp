#include "colossal/optim/logical_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/reduce.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/host_value.h"

namespace colossal::optim {

LogicalTensors::LogicalTensors(const nn::Parameters& parameters, comm::Mesh& mesh,
                               std::optional<at::Device> borrow_device,
                               const std::function<bool(const nn::Parameter&)>& includes)
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
    if (is_trained && (!includes || includes(p))) trained[p.name] = &p;
  }
  for (const auto& [name, parameter] : trained) {
    index_[name] = entries_.size();
    Entry& entry = entries_.emplace_back(Entry{name, parameter->spec, parameter->hidden_matrix, parameter->is_stack});
    entry.shape = entry.spec.shape;
    entry.first = size_;
    if (entry.is_stack) {
      entry.count = static_cast<size_t>(entry.shape.front());
      entry.shape.erase(entry.shape.begin());
    }
    size_ += entry.count;
  }
  for (const nn::Parameter& p : parameters.declared())
    if (trained.count(p.name)) as_declared_.push_back(index_.at(p.name));
  std::vector<double> roots;
  for (const Entry& entry : entries_) {
    std::vector<int64_t> shape = entry.shape;
    const auto [first, end] = trained.at(entry.name)->trained_rows();
    if (!entry.is_stack && !shape.empty()) shape.front() = end - first;
    roots.insert(roots.end(), entry.count, std::sqrt(static_cast<double>(c10::multiply_integers(shape))));
  }
  roots_of_sizes_ = at::tensor(roots, at::kDouble).to(device_);
}

at::Tensor LogicalTensors::zeros() const {
  return at::zeros({static_cast<int64_t>(size_)}, at::dtype(at::kDouble).device(device_));
}

std::vector<int64_t> LogicalTensors::Entry::shape_of_state(std::vector<int64_t> shape) const {
  if (is_stack) shape.insert(shape.begin(), static_cast<int64_t>(count));
  return shape;
}

std::vector<LogicalTensors::Part> LogicalTensors::parts(const memory::Piece& piece) const {
  const Entry& of = entry(*piece.parameter);
  if (!of.is_stack) return {{of.first, piece}};
  const tensor::FlatPart& flat = piece.part;
  const std::vector<int64_t> local = of.spec.local_shape(mesh_.coordinates());
  const int64_t numel = c10::multiply_integers(local.begin() + 1, local.end());  // of a slice, in this rank's part
  const tensor::ShardSpec slices{.shape = {of.spec.shape[0]}, .splits = {of.spec.splits[0]}, .gradient_axes = {}};
  std::vector<Part> parts;
  for (const tensor::LocalBox& run : slices.local_boxes(mesh_.coordinates())) {
    const int64_t begin = run.local_start[0], end = begin + run.size[0];
    for (int64_t slice = std::max(begin, flat.first / numel); slice < end; ++slice) {
      const int64_t first = std::max(slice * numel, flat.first);
      const int64_t last = std::min((slice + 1) * numel, flat.first + flat.size);
      if (first >= last) break;
      parts.push_back({of.first + static_cast<size_t>(run.start[0] + slice - begin),
                       {piece.parameter, piece.offset + first - flat.first, {first, last - first, flat.counts}}});
    }
  }
  return parts;
}

std::vector<LogicalTensors::Block> LogicalTensors::blocks(const memory::Piece& piece, Counting counting) const {
  const tensor::MeshCoordinates& coordinates = mesh_.coordinates();
  const tensor::ShardSpec* spec = &piece.parameter->spec;
  tensor::ShardSpec of_stage;
  if (counting == Counting::InStage && !spec->stages.empty()) {
    of_stage = *spec;
    of_stage.stages = {coordinates.index("pipeline")};
    spec = &of_stage;
  }
  const std::vector<int64_t> local = spec->local_shape(coordinates);
  std::vector<Block> blocks;
  for (const Part& part : parts(piece))
    for (tensor::LocalBox& box : tensor::local_boxes(*spec, coordinates, part.piece.part)) {
      Block& block = blocks.emplace_back();
      block.tensor = part.tensor;
      block.is_in_stack_ = piece.parameter->is_stack;
      block.start.assign(box.start.begin() + block.is_in_stack_, box.start.end());
      block.size.assign(box.size.begin() + block.is_in_stack_, box.size.end());
      block.counts = box.primary;
      block.piece_ = part.piece;
      block.local_shape_ = local;
      block.box_ = std::move(box);
    }
  return blocks;
}

at::Tensor LogicalTensors::Block::of(const at::Tensor& buffer) const {
  const at::Tensor flat = buffer.narrow(0, piece_.offset, piece_.part.size);
  const at::Tensor box = tensor::at_local_box(flat, local_shape_, piece_.part, box_);
  return is_in_stack_ ? box.select(0, 0) : box;
}

at::Tensor LogicalTensors::Block::in(const at::Tensor& whole) const {
  at::Tensor box = whole;
  for (size_t d = 0; d < size.size(); ++d) box = box.narrow(static_cast<int64_t>(d), start[d], size[d]);
  return box;
}

void LogicalTensors::add_squares(const std::vector<memory::Piece>& pieces, const at::Tensor& buffer,
                                 at::Tensor& squares) const {
  const bool at_once = ops::sums_at_once(buffer);
  std::vector<at::Tensor> counted, sums;
  for (const memory::Piece& piece : pieces)
    for (const Part& part : parts(piece)) {
      const at::Tensor sum = squares.select(0, static_cast<int64_t>(part.tensor));
      if (!at_once) {
        sum.add_(memory::counted_squares(buffer, part.piece, mesh_.coordinates()));
        continue;
      }
      for (const at::Tensor& elements : memory::counted_parts(buffer, part.piece, mesh_.coordinates())) {
        counted.push_back(elements);
        sums.push_back(sum);
      }
    }
  const std::vector<at::Tensor> norms = ops::norms(counted, 2);
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
  if (tensor::is_for_cpu(factors_)) return known_.empty() ? 1 : known_[tensor];  // meta has no values
  at::Tensor(x).mul_(factors_.select(0, static_cast<int64_t>(tensor)));
  return 1;
}

}  // namespace colossal::optim
