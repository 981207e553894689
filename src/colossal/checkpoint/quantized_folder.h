// Hugging Face folders whose weights are codes of few bits, as GPTQ and AWQ write them.
//
//   GPTQ   x.qweight int32 [in / p, out]   p = 32 / bits codes a word, the first input in the lowest bits
//          x.qzeros  int32 [groups, out / p], x.scales [groups, out], x.g_idx int32 [in]: the group of an input
//          weight = scale * (code - zero); checkpoint_format "gptq" has zeros less one, "gptq_v2" as they are
//   AWQ    x.qweight int32 [in, out / 8], x.qzeros int32 [in / group, out / 8], x.scales [in / group, out], version
//          gemm: a word's halves of bytes, from the lowest on, are of the outputs 0 2 4 6 1 3 5 7
//
// See: https://github.com/AutoGPTQ/AutoGPTQ, https://github.com/ModelCloud/GPTQModel,
// https://github.com/casper-hansen/AutoAWQ.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "colossal/checkpoint/weight_folder.h"

namespace colossal::checkpoint {

/// What quantization_config of a config.json says of the tensors.
struct QuantizedFormat {
  enum class Method { Gptq, Awq } method = Method::Gptq;
  int64_t bits = 4;            ///< 4, GPTQ also 8
  int64_t group = 128;         ///< inputs that share a scale; -1: all
  bool zeros_less_one = true;  ///< GPTQ: 1 is added to what is stored
  bool transposed = false;     ///< the model's weights are [in, out] where they are no codes (GPT-2)
};

/// Whether `config` has a quantization_config that says something.
bool is_quantized(const nlohmann::json& config);
/// Errors: throws Error("quantization", ...) naming `path`, the value and what there may be: another quant_method
///         (bitsandbytes, fp8, compressed-tensors), bits, group, version or checkpoint_format.
QuantizedFormat quantized_format(const nlohmann::json& config, const std::string& path);

/// Such a folder as if it held weights: "x.weight" in fp32 in place of x.qweight and those beside it.
///
/// Errors: those of WeightFolder; throws Error("quantization", ...) where tensors of a weight are missing or have
///         another shape or dtype than the format says, and from tensor() and codes() where g_idx names no group.
class QuantizedFolder final : public WeightSource {
 public:
  QuantizedFolder(const std::string& folder, const QuantizedFormat& format);
  /// Returns a quantized weight as the values that it stands for, scale * (code - zero), in fp32.
  at::Tensor tensor(const std::string& name) const override;
  /// Returns nothing for a weight whose inputs of one group are not neighbours (desc_act with g_idx out of order). Also
  /// returns nothing for 8 bits if a zero point is not 128 or a quantized value is 0.
  std::optional<ops::GroupCodes> codes(const std::string& name) const override;
  void leave(const std::string& name) const override;

 private:
  struct Sizes {
    int64_t inputs, outputs, group;
  };
  void add_weight(const std::string& base);
  bool holds(const std::string& name) const { return folder_.entries().count(name) != 0; }
  const TensorEntry& entry(const std::string& name) const;
  at::Tensor raw_codes(const std::string& base) const;
  at::Tensor zeros(const std::string& base) const;
  std::optional<at::Tensor> order(const std::string& base, const Sizes& sizes) const;

  std::string path_;
  QuantizedFormat format_;
  WeightFolder folder_;
  std::map<std::string, Sizes> sizes_;          // by base: "x" of x.qweight
  std::map<std::string, TensorEntry> weights_;  // by "x.weight"
};

}  // namespace colossal::checkpoint
