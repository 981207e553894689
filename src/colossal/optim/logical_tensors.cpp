#include "colossal/optim/logical_tensors.h"

#include <ATen/ATen.h>

#include <cstring>
#include <sstream>

#include "colossal/base/error.h"

namespace colossal::optim {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// A line a tensor: "2 768 3072 blocks.0.mlp.up.weight" for one of two dimensions.
std::string to_text(const Shapes& shapes) {
  std::string text;
  for (const auto& [name, shape] : shapes) {
    text += std::to_string(shape.size());
    for (const int64_t size : shape) text += " " + std::to_string(size);
    text += " " + name + "\n";
  }
  return text;
}

void add_text(const std::string& text, Shapes& shapes) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    size_t dims = 0;
    words >> dims;
    std::vector<int64_t> shape(dims);
    for (int64_t& size : shape) words >> size;
    std::string name;
    words.get();
    std::getline(words, name);
    shapes[name] = shape;
  }
}

std::string gathered(const std::string& mine, comm::Group& group) {
  at::Tensor longest = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong);
  group.all_reduce(longest, comm::Reduce::Max).wait();
  const int64_t length = longest.item<int64_t>();
  at::Tensor own = at::full({length}, '\n', at::kByte), all = at::full({length * group.size()}, '\n', at::kByte);
  std::memcpy(own.mutable_data_ptr(), mine.data(), mine.size());
  group.all_gather(all, own).wait();
  return {static_cast<const char*>(all.const_data_ptr()), static_cast<size_t>(all.numel())};
}

}  // namespace

LogicalTensors::LogicalTensors(const std::vector<memory::Shard>& shards, comm::Mesh& mesh) : mesh_(mesh) {
  Shapes shapes;
  for (const memory::Shard& shard : shards)
    for (const memory::Piece& piece : shard.pieces) shapes[piece.parameter->name] = piece.parameter->spec.shape;
  if (mesh.all().size() > 1) add_text(gathered(to_text(shapes), mesh.all()), shapes);
  shapes.erase("");  // of the lines that fill the messages up
  for (const auto& [name, shape] : shapes) {
    index_[name] = entries_.size();
    entries_.push_back({name, shape});
  }
}

at::Tensor LogicalTensors::counted_squares(const std::vector<memory::Shard>& shards,
                                           const std::vector<at::Tensor>& buffers) const {
  at::Tensor squares = at::zeros({static_cast<int64_t>(entries_.size())}, at::kDouble);
  auto* sum = squares.mutable_data_ptr<double>();
  for (size_t i = 0; i < shards.size(); ++i)
    for (const memory::Piece& piece : shards[i].pieces)
      sum[index(*piece.parameter)] += memory::counted_squares(buffers[i], piece, mesh_.place());
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
