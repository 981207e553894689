#include "colossal/checkpoint/weight_source.h"

#include <ATen/ATen.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/checkpoint/gguf/weights.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/ldm/weights.h"
#include "colossal/checkpoint/quantized/bitsandbytes.h"
#include "colossal/checkpoint/quantized/folder.h"
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
  const std::string folder = model_folder(path), about = folder + "/config.json";
  std::error_code none;
  if (std::filesystem::exists(about, none))
    if (const nlohmann::json config = read_json_object(about, "hugging face"); is_quantized(config)) {
      const QuantizedFormat format = quantized_format(config, about);
      if (format.method == QuantizedFormat::Method::Bitsandbytes)
        return std::make_unique<BitsandbytesFolder>(folder, format.transposed);
      return std::make_unique<QuantizedFolder>(folder, format);
    }
  return std::make_unique<WeightFolder>(folder);
}

std::unique_ptr<WeightSource> weights_in_memory(const std::map<std::string, at::Tensor>& tensors) {
  return std::make_unique<WeightsInMemory>(tensors);
}

}  // namespace colossal::checkpoint
