#include "colossal/checkpoint/folding/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::checkpoint {
namespace {

constexpr char kFoldingFile[] = "hugging face";
constexpr int64_t kMostBlocks = 1 << 12;
constexpr char kMarker[] = "input_embedder.linear_tf_z_i.weight";  // of OpenFold

bool holds_alphafold(const WeightSource& file) {
  return std::any_of(file.entries().begin(), file.entries().end(), [](const auto& entry) {
    return is_alphafold_name(entry.first) || openfold_name(entry.first) == kMarker;
  });
}

int64_t elements_of(const std::vector<int64_t>& sizes, size_t first, size_t last) {
  int64_t all = 1;
  for (size_t i = first; i < last; ++i) all *= sizes[i];
  return all;
}

/// Returns the sizes in which a tensor of AlphaFold is presented; `sizes` are those of one block.
std::vector<int64_t> presented(const std::vector<int64_t>& sizes, AlphaFoldForm form) {
  switch (form) {
    case AlphaFoldForm::InputFirst:
      return {elements_of(sizes, 1, sizes.size()), sizes.front()};
    case AlphaFoldForm::OutputLast:
      return {sizes.back(), elements_of(sizes, 0, sizes.size() - 1)};
    default:
      return {elements_of(sizes, 0, sizes.size())};
  }
}

}  // namespace

std::unique_ptr<WeightSource> FoldingWeights::of(std::unique_ptr<WeightSource> file, const std::string& path) {
  if (!holds_alphafold(*file)) return file;
  return std::unique_ptr<WeightSource>(new FoldingWeights(std::move(file), path));
}

FoldingWeights::FoldingWeights(std::unique_ptr<WeightSource> file, const std::string& path) : file_(std::move(file)) {
  for (const auto& [name, entry] : file_->entries()) {
    const std::optional<AlphaFoldPlace> place = place_of_alphafold(name);
    if (!place) {
      add(is_alphafold_name(name) ? name : openfold_name(name), {.name = name, .entry = *entry}, path);
      continue;
    }
    const bool is_matrix = place->form != AlphaFoldForm::Vector;
    const size_t needed = (place->stacked ? 1 : 0) + (is_matrix ? 2 : 0);
    require(entry->shape.size() >= needed, kFoldingFile, path, ": ", printable(name), " must have at least ", needed,
            " dimensions: got ", entry->shape.size());
    const std::vector<int64_t> sizes(entry->shape.begin() + (place->stacked ? 1 : 0), entry->shape.end());
    const int64_t blocks = place->stacked ? entry->shape.front() : 1;
    require(blocks > 0 && blocks <= kMostBlocks, kFoldingFile, path, ": ", printable(name), " must be of 1 to ",
            kMostBlocks, " blocks: got ", blocks);
    for (int64_t i = 0; i < blocks; ++i) {
      std::string ours = place->name;
      if (const size_t number = ours.find("{}"); number != std::string::npos)
        ours.replace(number, 2, std::to_string(i));
      Stored one{.name = name, .block = place->stacked ? i : -1, .form = place->form, .is_as_stored = false};
      one.entry = {"", entry->dtype, presented(sizes, place->form), 0,
                   (entry->end - entry->begin) / static_cast<uint64_t>(blocks)};
      add(ours, std::move(one), path);
    }
  }
  for (const auto& [name, one] : stored_) entries_[name] = &one.entry;
}

void FoldingWeights::add(const std::string& name, Stored stored, const std::string& path) {
  const std::string in_file = stored.name;
  stored.entry.name = name;
  const auto [found, is_new] = stored_.emplace(name, std::move(stored));
  require(is_new, kFoldingFile, path, ": ", printable(in_file), " and ", printable(found->second.name), " are both ",
          printable(name), "; remove one");
}

at::Tensor FoldingWeights::tensor(const std::string& name) const {
  const Stored& one = stored_.at(name);
  const at::Tensor there = one.block < 0 ? file_->tensor(one.name) : file_->row(one.name, one.block);
  if (one.is_as_stored) return there;
  switch (one.form) {
    case AlphaFoldForm::InputFirst:
      return there.flatten(1).t().contiguous();
    case AlphaFoldForm::OutputLast:
      return there.flatten(0, -2).t().contiguous();
    default:
      return there.reshape({-1});
  }
}

}  // namespace colossal::checkpoint
