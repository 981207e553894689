// Reads Hugging Face folders whose linear layers bitsandbytes has quantized to NF4 (ops/products/nf4_weight.h).
//
//   x.weight                                      uint8 [ceil(n / 2), 1]: two codes a byte, the first in the upper half
//   x.weight.absmax                               fp32 [ceil(n / 64)]; with double quantization uint8
//   x.weight.quant_map                            fp32 [16]: the levels
//   x.weight.nested_absmax, .nested_quant_map     double: fp32 [ceil(blocks / 256)], [256]
//   x.weight.quant_state.bitsandbytes__nf4        uint8: JSON with quant_type, blocksize, dtype, shape [out, in];
//                                                 double: nested_blocksize, nested_dtype, nested_offset
//
// See: https://github.com/bitsandbytes-foundation/bitsandbytes, QuantState in functional.py.
#pragma once
#include <map>
#include <string>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"

namespace colossal::checkpoint {

/// Checks a quantization_config whose quant_method is bitsandbytes. llm_int8_skip_modules and other keys do not matter,
/// because the tensors show which layers are quantized.
/// Errors: throws Error("quantization", ...) with `path`, the value and the supported one, for 8 bits or another
///         bnb_4bit_quant_type (fp4).
void check_bitsandbytes(const nlohmann::json& quantization, const std::string& path);

/// Reads such a folder as if it held plain weights: "x.weight" in fp32 replaces the tensors of x.
///
/// Errors: errors of WeightFolder; Error("quantization", ...) if tensors of a weight are missing or have another form
///         than the format, blocks other than 64 and 256, or levels other than those of NF4.
class BitsandbytesFolder final : public WeightSource {
 public:
  /// `transposed`: weights that are not quantized are [in, out] in this model (GPT-2). Quantized ones are [out, in], so
  /// they are read as their transposes.
  BitsandbytesFolder(const std::string& folder, bool transposed);
  /// Returns the values of a quantized weight, level * absmax in fp32, as bitsandbytes has them before it rounds them
  /// to the dtype of its state; other tensors as stored.
  at::Tensor tensor(const std::string& name) const override;
  std::optional<ops::Nf4Weight> nf4(const std::string& name) const override;
  void leave(const std::string& name) const override;
  std::optional<CodesForm> codes_form(const std::string& name) const override;

 private:
  struct Quantized {
    ops::Nf4Form form;
    double nested_offset = 0;
  };
  void add_weight(const std::string& name);
  const TensorEntry& entry(const std::string& name) const;
  at::Tensor checked(const std::string& name, at::ScalarType dtype, int64_t count) const;

  std::string path_;
  bool transposed_;
  WeightFolder folder_;
  std::map<std::string, Quantized> quantized_;  // keyed by "x.weight"
  std::map<std::string, TensorEntry> weights_;  // keyed by "x.weight"
};

}  // namespace colossal::checkpoint
