#include "colossal/checkpoint/quantized/bitsandbytes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/mismatch.h"
#include "colossal/ops/products/nf4_levels.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;
constexpr char kBitsandbytes[] = "quantization";
constexpr std::string_view kState = ".quant_state.bitsandbytes__";
constexpr char kNf4State[] = ".quant_state.bitsandbytes__nf4";
constexpr std::array kCompanions{".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", kNf4State};
constexpr int64_t kNestedBlock = 256;

bool is_true(const json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() && found->get<bool>();
}

/// The state of a quantized weight.
struct State {
  std::vector<int64_t> shape;
  bool double_quantized = false;
  double nested_offset = 0;
};

State state_of(const at::Tensor& bytes, const std::string& name) {
  const at::Tensor flat = bytes.contiguous().flatten();
  const std::string_view text(static_cast<const char*>(flat.const_data_ptr()), static_cast<size_t>(flat.numel()));
  const json says = parse_json_object(text, name, kBitsandbytes);
  const auto require_member = [&](const char* key, const json& wanted) {
    const auto found = says.find(key);
    require(found != says.end() && *found == wanted, kBitsandbytes, name, ": ", key, " must be ", wanted.dump(),
            ": got ", found == says.end() ? "none" : printable(found->dump()));
  };
  require_member("quant_type", "nf4");
  require_member("blocksize", ops::kNf4Block);
  State state;
  const auto shape = says.find("shape");
  constexpr int64_t kMaxSide = int64_t{1} << 30;
  require(
      shape != says.end() && shape->is_array() && shape->size() == 2 &&
          std::all_of(shape->begin(), shape->end(),
                      [](const json& side) {
                        return side.is_number_integer() && side.get<int64_t>() > 0 && side.get<int64_t>() < kMaxSide;
                      }),
      kBitsandbytes, name, ": shape must be two sizes: got ", shape == says.end() ? "none" : printable(shape->dump()));
  state.shape = shape->get<std::vector<int64_t>>();
  const auto offset = says.find("nested_offset");
  state.double_quantized = offset != says.end();
  if (!state.double_quantized) return state;
  require(offset->is_number(), kBitsandbytes, name, ": nested_offset must be a number: got ",
          printable(offset->dump()));
  state.nested_offset = offset->get<double>();
  require_member("nested_blocksize", kNestedBlock);
  return state;
}

}  // namespace

void check_bitsandbytes(const json& quantization, const std::string& path) {
  require(!is_true(quantization, "load_in_8bit") && !is_true(quantization, "_load_in_8bit"), kBitsandbytes, path,
          ": bitsandbytes must have 4 bits: got load_in_8bit; use the folder of the model before quantization");
  const auto type = quantization.find("bnb_4bit_quant_type");
  // fp4 is the default of bitsandbytes.
  const std::string found = type != quantization.end() && type->is_string() ? type->get<std::string>() : "fp4";
  require(found == "nf4", kBitsandbytes, path, ": bnb_4bit_quant_type of bitsandbytes must be nf4: got ",
          printable(found), "; use the folder of the model before quantization");
}

BitsandbytesFolder::BitsandbytesFolder(const std::string& folder, bool transposed)
    : path_(folder), transposed_(transposed), folder_(folder) {
  for (const auto& [name, its] : folder_.entries())
    if (const size_t end = name.find(kState); end != std::string::npos) {
      require(name.ends_with(kNf4State), kBitsandbytes, path_, ": quantized weights must be in nf4: got ",
              printable(name));
      add_weight(name.substr(0, end));
    }
  for (const auto& [name, its] : folder_.entries()) {
    const bool is_companion = std::any_of(kCompanions.begin(), kCompanions.end(), [&name = name, this](auto end) {
      return name.ends_with(end) && quantized_.contains(name.substr(0, name.size() - std::string_view(end).size()));
    });
    if (!is_companion && !quantized_.contains(name)) entries_.emplace(name, its);
  }
  for (const auto& [name, its] : weights_) entries_.emplace(name, &its);
}

const TensorEntry& BitsandbytesFolder::entry(const std::string& name) const {
  const auto found = folder_.entries().find(name);
  require(found != folder_.entries().end(), kBitsandbytes, path_, ": quantized weights need ", printable(name),
          ", which is missing");
  return *found->second;
}

at::Tensor BitsandbytesFolder::checked(const std::string& name, at::ScalarType dtype, int64_t count) const {
  const TensorEntry& its = entry(name);
  int64_t found = 1;
  for (const int64_t size : its.shape) found *= size;
  require(its.dtype == dtype && found == count, kBitsandbytes, path_, ": ", printable(name), " must have ", count,
          " elements of ", dtype, ": got ", describe(its.dtype, its.shape));
  return folder_.tensor(name);
}

void BitsandbytesFolder::add_weight(const std::string& name) {
  const State state = state_of(folder_.tensor(entry(name + kNf4State).name), concat(path_, ": ", printable(name)));
  Quantized its{ops::Nf4Form::whole(state.shape[0], state.shape[1], state.double_quantized), state.nested_offset};
  const TensorEntry& codes = entry(name);
  // bnb_4bit_quant_storage may declare the bytes as another dtype.
  const auto bytes = static_cast<int64_t>(codes.end - codes.begin), n = state.shape[0] * state.shape[1];
  require(bytes == (n + 1) / 2, kBitsandbytes, path_, ": ", printable(name), " must have ", (n + 1) / 2,
          " bytes for the shape ", describe(state.shape), ": got ", describe(codes.dtype, codes.shape));
  const int64_t blocks = its.form.blocks();
  checked(name + ".absmax", state.double_quantized ? at::kByte : at::kFloat, blocks);
  const at::Tensor levels = checked(name + ".quant_map", at::kFloat, 16);
  // Older versions computed the levels, which changed their last bits. Decoding uses the constants.
  require((levels - at::tensor(at::ArrayRef<float>(ops::kNf4Levels))).abs().le(1e-6).all().item<bool>(), kBitsandbytes,
          path_, ": ", printable(name), ".quant_map must have the levels of nf4");
  if (state.double_quantized) {
    checked(name + ".nested_absmax", at::kFloat, (blocks + kNestedBlock - 1) / kNestedBlock);
    checked(name + ".nested_quant_map", at::kFloat, 256);
  }
  TensorEntry weight{name, at::kFloat, state.shape};
  if (transposed_) std::swap(weight.shape[0], weight.shape[1]);
  quantized_[name] = its;
  weights_[name] = std::move(weight);
}

std::optional<ops::Nf4Weight> BitsandbytesFolder::nf4(const std::string& name) const {
  const auto found = quantized_.find(name);
  if (found == quantized_.end()) return {};
  const auto& [form, offset] = found->second;
  ops::Nf4Codes numbers{.codes = folder_.tensor(name).contiguous().flatten().view(at::kByte),
                        .absmax = folder_.tensor(name + ".absmax"),
                        .nested_mean = offset};
  if (form.double_quantized) {
    numbers.nested_absmax = folder_.tensor(name + ".nested_absmax");
    numbers.nested_values = folder_.tensor(name + ".nested_quant_map");
  }
  return ops::nf4_weight(form, numbers);
}

std::optional<CodesForm> BitsandbytesFolder::codes_form(const std::string& name) const {
  const auto found = quantized_.find(name);
  if (found == quantized_.end()) return {};
  return CodesForm{.is_nf4 = true, .double_quantized = found->second.form.double_quantized};
}

at::Tensor BitsandbytesFolder::tensor(const std::string& name) const {
  const std::optional<ops::Nf4Weight> weight = nf4(name);
  if (!weight) return folder_.tensor(name);
  const at::Tensor values = ops::dequantize(*weight, at::kFloat);
  return transposed_ ? values.t() : values;
}

void BitsandbytesFolder::leave(const std::string& name) const {
  folder_.leave(name);
  if (!quantized_.contains(name)) return;
  for (const char* end : kCompanions)
    if (folder_.entries().contains(name + end)) folder_.leave(name + end);
}

}  // namespace colossal::checkpoint
