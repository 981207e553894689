#include "colossal/run/objectives/reconstruction/lpips.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/checkpoint/mismatch.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/memory/account.h"
#include "colossal/nn/convolution.h"
#include "colossal/ops/activation.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsReader;
using checkpoint::TensorEntry;

constexpr double kUnitEpsilon = 1e-10;

/// The convolutions between two halvings of the sides: their numbers in torchvision's `features`, and the features that
/// VGG16 has there. LPIPS compares the results of the last one.
struct VggLevel {
  std::vector<int64_t> numbers;
  int64_t features;
};
using VggLevels = std::array<VggLevel, 5>;

VggLevels vgg_levels() {
  return {{{{0, 2}, 64}, {{5, 7}, 128}, {{10, 12, 14}, 256}, {{17, 19, 21}, 512}, {{24, 26, 28}, 512}}};
}

/// The weights, and the constants of pixels.
struct LpipsWeights {
  std::vector<at::Tensor> kernels, biases;  // of the 13 convolutions
  std::vector<at::Tensor> lins;             // of the five layers, [features]
  at::Tensor shift, scale;                  // [3]
};

/// The files of a folder, as one table of tensors.
struct LpipsFiles {
  std::vector<std::unique_ptr<SafetensorsReader>> readers;
  std::map<std::string, const SafetensorsReader*> owners;

  explicit LpipsFiles(const std::string& folder) {
    std::vector<std::string> paths;
    std::error_code failed;
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
      if (at->path().extension() == ".safetensors") paths.push_back(at->path().string());
    require(!paths.empty(), "lpips", "lpips_from must name a folder with .safetensors files of VGG16 and LPIPS: got \"",
            folder, "\", which has none; docs/explanation/diffusion.md says how to make them");
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) {
      readers.push_back(std::make_unique<SafetensorsReader>(path));
      for (const auto& [name, entry] : readers.back()->entries()) {
        const auto [owner, is_new] = owners.emplace(name, readers.back().get());
        require(is_new, "lpips", "the files of ", folder, " must have different tensors: got ", name, " in ",
                owner->second->path(), " and ", path, "; remove one of the files");
      }
    }
  }
  /// Returns the entry of a tensor; null = there is none.
  const TensorEntry* find(const std::string& name) const {
    const auto owner = owners.find(name);
    return owner == owners.end() ? nullptr : &owner->second->entries().at(name);
  }
};

/// Takes tensors out of the files and lists those that do not fit.
class LpipsTable {
 public:
  explicit LpipsTable(const LpipsFiles& files) : files_(files) {}
  /// Returns the outputs of a convolution: those of the file, or `otherwise` if it lacks the tensor.
  int64_t outputs(const std::string& name, int64_t otherwise) const {
    const TensorEntry* entry = files_.find(name);
    return entry && !entry->shape.empty() && entry->shape.front() > 0 ? entry->shape.front() : otherwise;
  }
  /// Returns the tensor if it has those sizes, undefined otherwise.
  at::Tensor take(const std::string& name, const std::vector<int64_t>& sizes) {
    used_.insert(name);
    const TensorEntry* entry = files_.find(name);
    if (entry && at::isFloatingType(entry->dtype) && entry->shape == sizes) return files_.owners.at(name)->tensor(name);
    table_.add(name, checkpoint::describe(sizes), entry ? checkpoint::describe(entry->dtype, entry->shape) : "-");
    return {};
  }
  /// Throws a table of all tensors that do not fit, and of those that nothing took.
  void require_empty(const std::string& folder) {
    for (const int layer : {0, 3, 6})
      for (const char* kind : {"weight", "bias"}) used_.insert(concat("classifier.", layer, ".", kind));
    for (const auto& [name, owner] : files_.owners)
      if (!used_.contains(name)) {
        const TensorEntry& spare = owner->entries().at(name);
        table_.add(name, "-", checkpoint::describe(spare.dtype, spare.shape));
      }
    table_.require_empty("lpips", folder + " does not hold the VGG16 and the layers lin0 to lin4 of LPIPS");
  }

 private:
  const LpipsFiles& files_;
  checkpoint::MismatchTable table_;
  std::set<std::string> used_;
};

/// Returns the sizes of VGG16 on meta.
LpipsWeights sizes_of_vgg() {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(at::kMeta);
  LpipsWeights weights;
  int64_t in = 3;
  for (const VggLevel& level : vgg_levels()) {
    for (size_t i = 0; i < level.numbers.size(); ++i, in = level.features) {
      weights.kernels.push_back(at::empty({level.features, in, 3, 3}, options));
      weights.biases.push_back(at::empty({level.features}, options));
    }
    weights.lins.push_back(at::empty({level.features}, options));
  }
  return weights;
}

/// Returns copies that do not depend on the files, with the constants.
LpipsWeights copies_of(const LpipsWeights& weights, const at::TensorOptions& options) {
  LpipsWeights copies;
  const auto copy = [&](const std::vector<at::Tensor>& from, std::vector<at::Tensor>& to) {
    for (const at::Tensor& one : from)
      to.push_back(options.device().is_meta() ? at::empty(one.sizes(), options) : one.to(options, false, true));
  };
  copy(weights.kernels, copies.kernels);
  copy(weights.biases, copies.biases);
  copy(weights.lins, copies.lins);
  copies.shift = at::tensor({-.030, -.088, -.188}, options);
  copies.scale = at::tensor({.458, .448, .450}, options);
  return copies;
}

/// Returns x [B, h, w, C] with half the sides: the largest of each 2 x 2 pixels.
at::Tensor largest_of_four(const at::Tensor& x) {
  return at::max_pool2d(x.permute({0, 3, 1, 2}), {2, 2}, {2, 2}).permute({0, 2, 3, 1}).contiguous();
}

/// Returns the features of each pixel divided by their norm.
at::Tensor unit_features(const at::Tensor& x) {
  const at::Tensor squares = x.square().sum(-1, /*keepdim=*/true);
  // The root has no gradient at 0.
  return x / (squares.masked_fill(squares == 0, 1).sqrt() + kUnitEpsilon);
}

/// Returns the features that LPIPS compares, [B, h, w, C] each.
std::vector<at::Tensor> compared_features(const LpipsWeights& weights, const at::Tensor& pixels,
                                          const ops::PictureSize& size) {
  const ops::Activation& relu = ops::activation("relu");
  at::Tensor x = nn::as_pictures((pixels - weights.shift) / weights.scale, size);
  std::vector<at::Tensor> features;
  size_t next = 0;
  for (const VggLevel& level : vgg_levels()) {
    if (next > 0) x = largest_of_four(x);
    for (size_t i = 0; i < level.numbers.size(); ++i, ++next)
      x = relu.plain(ops::convolution(x, weights.kernels[next], weights.biases[next], ops::Window::same(3)));
    features.push_back(unit_features(x));
  }
  return features;
}

/// Reads the weights of a folder, without the constants. The tensors may be views of the files.
LpipsWeights read_lpips(const std::string& folder) {
  const LpipsFiles files(folder);
  LpipsTable table(files);
  LpipsWeights weights;
  int64_t in = 3;
  size_t layer = 0;
  for (const VggLevel& level : vgg_levels()) {
    for (const int64_t number : level.numbers) {
      const std::string name = concat("features.", number, ".");
      const int64_t out = table.outputs(name + "weight", level.features);
      weights.kernels.push_back(table.take(name + "weight", {out, in, 3, 3}));
      in = out;
      weights.biases.push_back(table.take(name + "bias", {in}));
    }
    const at::Tensor lin = table.take(concat("lin", layer++, ".model.1.weight"), {1, in, 1, 1});
    weights.lins.push_back(lin.defined() ? lin.flatten() : lin);
  }
  table.require_empty(folder);
  return weights;
}

}  // namespace

struct Lpips::Loaded {
  /// Returns the weights on the device and in the dtype of `like`.
  const LpipsWeights& on(const std::string& folder, const at::Tensor& like) {
    const std::lock_guard lock(mutex);
    for (const auto& one : all)
      if (one->shift.device() == like.device() && one->shift.dtype() == like.dtype()) return *one;
    const memory::KindScope kind(memory::Kind::Buffers);
    const at::NoGradGuard constant;
    const bool has_sizes_alone = like.is_meta() && !fs::is_directory(folder);
    all.push_back(std::make_unique<const LpipsWeights>(
        copies_of(has_sizes_alone ? sizes_of_vgg() : read_lpips(folder), like.options())));
    return *all.back();
  }
  std::mutex mutex;
  std::vector<std::unique_ptr<const LpipsWeights>> all;
};

Lpips::Lpips(std::string folder) : folder_(std::move(folder)), loaded_(std::make_shared<Loaded>()) {}

void Lpips::check() const { read_lpips(folder_); }

at::Tensor Lpips::distance(const at::Tensor& x, const at::Tensor& y, const ops::PictureSize& size) const {
  require(x.dim() == 3 && x.size(2) == 3 && std::min(size.height, size.width) >= kLeastSideOfLpips, "lpips",
          "pictures must have 3 channels and at least ", kLeastSideOfLpips, " x ", kLeastSideOfLpips, " pixels: got ",
          x.sizes(), " for ", size.height, " x ", size.width);
  const LpipsWeights& weights = loaded_->on(folder_, x);
  std::vector<at::Tensor> wanted;
  {
    const at::NoGradGuard constant;
    wanted = compared_features(weights, y, size);
  }
  const std::vector<at::Tensor> found = compared_features(weights, x, size);
  at::Tensor sum;
  for (size_t i = 0; i < found.size(); ++i) {
    const at::Tensor distance = ((found[i] - wanted[i]).square() * weights.lins[i]).sum(-1).mean({1, 2});
    sum = sum.defined() ? sum + distance : distance;
  }
  return sum;
}

}  // namespace colossal::run
