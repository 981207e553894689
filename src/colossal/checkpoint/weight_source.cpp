#include "colossal/checkpoint/weight_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/checkpoint/folding/weights.h"
#include "colossal/checkpoint/gguf/weights.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/ldm/weights.h"
#include "colossal/checkpoint/quantized/bitsandbytes.h"
#include "colossal/checkpoint/quantized/folder.h"
#include "colossal/checkpoint/strided_weights.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::checkpoint {
namespace {

class WeightsInMemory final : public WeightSource {
 public:
  explicit WeightsInMemory(const std::map<std::string, at::Tensor>& tensors) : tensors_(tensors) {
    for (const auto& [name, value] : tensors_) {
      require(value.defined(), "hugging face", "every weight must be a tensor: got none for ", printable(name));
      table_[name] = {name, value.scalar_type(), value.sizes().vec(), 0, value.nbytes()};
      entries_[name] = &table_[name];
    }
  }
  at::Tensor tensor(const std::string& name) const override { return tensors_.at(name).detach(); }
  void leave(const std::string&) const override {}

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, TensorEntry> table_;
};

/// Several sources as one. The tensors of some have other names here than in their own source.
class JoinedWeights final : public WeightSource {
 public:
  using NameHere = std::function<std::string(const std::string& name)>;

  void add(std::unique_ptr<WeightSource> source, const NameHere& name_here) {
    for (const auto& [name, entry] : source->entries()) {
      const std::string here = name_here(name);
      entries_[here] = entry;
      places_[here] = {source.get(), name};
    }
    sources_.push_back(std::move(source));
  }
  at::Tensor tensor(const std::string& name) const override { return of(name).source->tensor(of(name).name); }
  at::Tensor row(const std::string& name, int64_t row) const override {
    return of(name).source->row(of(name).name, row);
  }
  std::optional<ops::GroupCodes> codes(const std::string& name) const override {
    return of(name).source->codes(of(name).name);
  }
  std::optional<ops::Nf4Weight> nf4(const std::string& name) const override {
    return of(name).source->nf4(of(name).name);
  }
  std::optional<CodesForm> codes_form(const std::string& name) const override {
    return of(name).source->codes_form(of(name).name);
  }
  void leave(const std::string& name) const override { of(name).source->leave(of(name).name); }
  bool can_wait(const std::string& name) const override { return of(name).source->can_wait(of(name).name); }

 private:
  struct Place {
    const WeightSource* source;
    std::string name;
  };
  const Place& of(const std::string& name) const { return places_.at(name); }

  std::vector<std::unique_ptr<WeightSource>> sources_;
  std::map<std::string, Place> places_;
};

}  // namespace

std::optional<std::string> WeightSource::find(const std::string& name, const std::string& prefix) const {
  if (entries_.count(name)) return name;
  if (name.rfind(prefix, 0) == 0 && entries_.count(name.substr(prefix.size()))) return name.substr(prefix.size());
  if (entries_.count(prefix + name)) return prefix + name;
  return std::nullopt;
}

at::Tensor WeightSource::row(const std::string& name, int64_t row) const { return tensor(name).select(0, row); }

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  if (formats::is_gguf(path)) return std::make_unique<GgufWeights>(path);
  if (const std::optional<LdmPart> part = ldm_part(path)) return std::make_unique<LdmWeights>(part->file, part->part);
  std::error_code none;
  if (is_strided_file(path)) return FoldingWeights::of(open_strided_weights(path), path);
  const std::string folder = model_folder(path), about = folder + "/config.json";
  if (std::filesystem::exists(about, none))
    if (const nlohmann::json config = read_json_object(about, "hugging face"); is_quantized(config)) {
      const QuantizedFormat format = quantized_format(config, about);
      if (format.method == QuantizedFormat::Method::Bitsandbytes)
        return std::make_unique<BitsandbytesFolder>(folder, format.transposed);
      return std::make_unique<QuantizedFolder>(folder, format);
    }
  if (std::unique_ptr<WeightSource> pickled = open_pickled_folder(folder)) return pickled;
  return std::make_unique<WeightFolder>(folder);
}

std::unique_ptr<WeightSource> open_weights(const std::string& path, const std::vector<PartBeside>& beside) {
  if (beside.empty()) return open_weights(path);
  auto joined = std::make_unique<JoinedWeights>();
  joined->add(open_weights(path), [](const std::string& name) { return name; });
  for (const PartBeside& part : beside) {
    std::unique_ptr<WeightSource> weights = open_weights(concat(path, "/", part.name));
    const auto& entries = weights->entries();
    const bool is_whole = std::any_of(entries.begin(), entries.end(),
                                      [&](const auto& entry) { return entry.first.starts_with(part.prefix); });
    joined->add(std::move(weights),
                [&](const std::string& name) { return concat(part.name, ".", is_whole ? "" : part.prefix, name); });
  }
  return joined;
}

std::unique_ptr<WeightSource> weights_in_memory(const std::map<std::string, at::Tensor>& tensors) {
  return std::make_unique<WeightsInMemory>(tensors);
}

}  // namespace colossal::checkpoint
