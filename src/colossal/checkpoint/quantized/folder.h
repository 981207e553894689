// Reads Hugging Face folders whose weights are quantized to few bits by GPTQ or AWQ (bitsandbytes: bitsandbytes.h).
//
//   GPTQ   x.qweight int32 [in / p, out]   p = 32 / bits values per word, the first input in the lowest bits
//          x.qzeros  int32 [groups, out / p], x.scales [groups, out], x.g_idx int32 [in]: the group of an input
//          weight = scale * (code - zero); checkpoint_format "gptq" has zeros minus one, "gptq_v2" zeros
//   AWQ    x.qweight int32 [in, out / 8], x.qzeros int32 [in / group, out / 8], x.scales [in / group, out], version
//          gemm: the 4-bit values of a word, from the lowest on, belong to the outputs 0 2 4 6 1 3 5 7
//
// See: https://github.com/AutoGPTQ/AutoGPTQ, https://github.com/ModelCloud/GPTQModel,
// https://github.com/casper-hansen/AutoAWQ.
#pragma once
#include <map>
#include <string>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"

namespace colossal::checkpoint {

/// Format of the quantized tensors according to quantization_config in config.json.
struct QuantizedFormat {
  enum class Method { Gptq, Awq, Bitsandbytes } method = Method::Gptq;
  int64_t bits = 4;            ///< 4; 8 for GPTQ only
  int64_t group = 128;         ///< number of inputs that share a scale; -1 = all
  bool zeros_less_one = true;  ///< GPTQ: stored zero points are one too low
  bool transposed = false;     ///< weights that are not quantized are [in, out] in this model (GPT-2)
};

/// Returns true if `config` has a quantization_config that is not empty.
bool is_quantized(const nlohmann::json& config);
/// Reads quantization_config.
/// Errors: throws Error("quantization", ...) with `path`, the value and the supported ones, for another quant_method
///         (fp8, compressed-tensors), bits, group, version or checkpoint_format. Errors of check_bitsandbytes().
QuantizedFormat quantized_format(const nlohmann::json& config, const std::string& path);

/// Reads a folder of GPTQ or AWQ as if it held plain weights: "x.weight" in fp32 replaces x.qweight and its companion
/// tensors.
///
/// Errors: errors of WeightFolder; Error("quantization", ...) if tensors of a weight are missing or differ in shape or
///         dtype from the format. tensor() and codes() also throw it if g_idx has an invalid group.
class QuantizedFolder final : public WeightSource {
 public:
  QuantizedFolder(const std::string& folder, const QuantizedFormat& format);
  /// Returns the dequantized values of a quantized weight, scale * (code - zero), in fp32; other tensors as stored.
  at::Tensor tensor(const std::string& name) const override;
  /// Returns none for a tensor that is not quantized, and for a weight whose groups do not consist of adjacent inputs
  /// (desc_act with g_idx out of order). Returns none for 8 bits if a zero point is not 128.
  std::optional<ops::GroupCodes> codes(const std::string& name) const override;
  void leave(const std::string& name) const override;
  std::optional<CodesForm> codes_form(const std::string& name) const override;

 private:
  struct Sizes {
    int64_t inputs, outputs, group;
  };
  void add_weight(const std::string& base);
  bool holds(const std::string& name) const { return folder_.entries().count(name) != 0; }
  const TensorEntry& entry(const std::string& name) const;
  at::Tensor raw_codes(const std::string& base) const;
  at::Tensor zeros(const std::string& base) const;
  /// Returns true if all zero points are the middle of the codes, so that GroupCodes need no minima.
  bool is_symmetric(const std::string& base) const;
  std::optional<at::Tensor> order(const std::string& base, const Sizes& sizes) const;

  std::string path_;
  QuantizedFormat format_;
  WeightFolder folder_;
  std::map<std::string, Sizes> sizes_;          // keyed by base: "x" of x.qweight
  std::map<std::string, TensorEntry> weights_;  // keyed by "x.weight"
};

}  // namespace colossal::checkpoint
