#include "colossal/checkpoint/quantized/folder.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/checkpoint/mismatch.h"
#include "colossal/checkpoint/quantized/bitsandbytes.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;
constexpr char kFormat[] = "quantization";
constexpr char kCodes[] = ".qweight", kWeight[] = ".weight";

/// Unpacks words, int32 [a, b], to quantized values, uint8 [a, b, 32 / bits], the lowest bits first.
at::Tensor codes_of_words(const at::Tensor& words, int64_t bits) {
  const at::Tensor whole = words.contiguous();
  const at::Tensor bytes = whole.view(at::kByte).view({whole.size(0), whole.size(1), 4});
  if (bits == 8) return bytes;
  return at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1).flatten(2);
}

/// Unpacks words of AWQ to [a, 8 b], with the outputs in ascending order.
at::Tensor codes_of_awq(const at::Tensor& words) {
  const at::Tensor place = at::tensor(std::vector<int64_t>{0, 4, 1, 5, 2, 6, 3, 7});  // of outputs in a word
  return codes_of_words(words, 4).index_select(2, place).flatten(1);
}

std::string text_of(const json& config, const char* key, const char* otherwise, const std::string& path) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  require(found->is_string(), kFormat, path, ": ", key, " must be text: got ", printable(found->dump()));
  return found->get<std::string>();
}

int64_t integer_of(const json& config, const char* key, const std::string& path) {
  const auto found = config.find(key);
  require(found != config.end() && found->is_number_integer(), kFormat, path, ": quantization_config must have ", key,
          ", a whole number");
  return found->get<int64_t>();
}

}  // namespace

bool is_quantized(const json& config) {
  const auto found = config.find("quantization_config");
  return found != config.end() && !found->is_null() && !(found->is_object() && found->empty());
}

QuantizedFormat quantized_format(const json& config, const std::string& path) {
  const json& says = config.at("quantization_config");
  require(says.is_object(), kFormat, path, ": quantization_config must be an object");
  const std::string method = text_of(says, "quant_method", "", path);
  require(method != "fp8", kFormat, path,
          ": quant_method must be gptq, awq or bitsandbytes: got fp8, weights in blocks with scales; "
          "convert the folder to bf16 first");
  require(method == "gptq" || method == "awq" || method == "bitsandbytes", kFormat, path,
          ": quant_method must be gptq, awq or bitsandbytes: got ", printable(method),
          "; use the folder of the model before quantization");
  QuantizedFormat format;
  format.transposed = text_of(config, "model_type", "", path) == "gpt2";
  if (method == "bitsandbytes") {
    check_bitsandbytes(says, path);
    format.method = QuantizedFormat::Method::Bitsandbytes;
    return format;
  }
  format.bits = integer_of(says, "bits", path);
  format.group = integer_of(says, "group_size", path);
  require(format.group == -1 || (format.group >= 8 && format.group % 8 == 0 && format.group <= int64_t{1} << 30),
          kFormat, path, ": group_size must be -1 or a multiple of 8: got ", format.group);
  if (method == "awq") {
    const std::string version = text_of(says, "version", "gemm", path);
    require(version == "gemm" || version == "GEMM", kFormat, path, ": the version of awq must be gemm: got ",
            printable(version));
    require(format.bits == 4, kFormat, path, ": awq must have 4 bits: got ", format.bits);
    format.method = QuantizedFormat::Method::Awq;
    return format;
  }
  require(format.bits == 4 || format.bits == 8, kFormat, path, ": gptq must have 4 or 8 bits: got ", format.bits);
  const std::string layout = text_of(says, "checkpoint_format", "gptq", path);
  require(layout == "gptq" || layout == "gptq_v2", kFormat, path, ": checkpoint_format must be gptq or gptq_v2: got ",
          printable(layout));
  format.zeros_less_one = layout == "gptq";
  return format;
}

QuantizedFolder::QuantizedFolder(const std::string& folder, const QuantizedFormat& format)
    : path_(folder), format_(format), folder_(folder) {
  for (const auto& [name, its] : folder_.entries())
    if (name.ends_with(kCodes)) add_weight(name.substr(0, name.size() - sizeof kCodes + 1));
  for (const auto& [name, its] : folder_.entries()) {
    const size_t dot = name.rfind('.');
    const std::string base = dot == std::string::npos ? "" : name.substr(0, dot), end = name.substr(base.size());
    const bool is_part = end == kCodes || end == ".qzeros" || end == ".scales" || end == ".g_idx";
    if (!is_part || !sizes_.count(base)) entries_.emplace(name, its);
  }
  for (const auto& [name, its] : weights_)
    require(entries_.emplace(name, &its).second, kFormat, path_, ": ", printable(name),
            " is stored both quantized and not");
}

const TensorEntry& QuantizedFolder::entry(const std::string& name) const {
  const auto found = folder_.entries().find(name);
  require(found != folder_.entries().end(), kFormat, path_, ": quantized weights need ", printable(name),
          ", which is missing");
  return *found->second;
}

void QuantizedFolder::add_weight(const std::string& base) {
  const bool awq = format_.method == QuantizedFormat::Method::Awq;
  const int64_t in_word = 32 / format_.bits;
  const auto require_form = [&](const std::string& name, std::vector<int64_t> shape, bool real) {
    const TensorEntry& its = entry(name);
    require(its.shape == shape && (real ? at::isFloatingType(its.dtype) : its.dtype == at::kInt), kFormat, path_, ": ",
            printable(name), " must be ", real ? "floating-point " : "", describe(shape), real ? "" : " of int32",
            ": got ", describe(its.dtype, its.shape));
  };
  const TensorEntry& words = entry(base + kCodes);
  constexpr int64_t kMaxSide = int64_t{1} << 40;
  require(words.shape.size() == 2 && words.dtype == at::kInt && words.shape[0] > 0 && words.shape[1] > 0 &&
              words.shape[0] < kMaxSide && words.shape[1] < kMaxSide,
          kFormat, path_, ": ", printable(words.name), " must be a matrix of int32: got ",
          describe(words.dtype, words.shape));
  Sizes sizes{words.shape[0], words.shape[1], format_.group};
  (awq ? sizes.outputs : sizes.inputs) *= in_word;
  require(sizes.outputs % in_word == 0, kFormat, path_, ": ", printable(words.name), " must have a multiple of ",
          in_word, " outputs: got ", sizes.outputs);
  if (sizes.group == -1) sizes.group = (sizes.inputs + 7) / 8 * 8;
  const int64_t groups = (sizes.inputs + sizes.group - 1) / sizes.group;
  require_form(base + ".qzeros", {groups, sizes.outputs / in_word}, false);
  require_form(base + ".scales", {groups, sizes.outputs}, true);
  if (holds(base + ".g_idx")) require_form(base + ".g_idx", {sizes.inputs}, false);
  sizes_[base] = sizes;
  TensorEntry weight{base + kWeight, at::kFloat, {sizes.outputs, sizes.inputs}};
  if (format_.transposed) std::swap(weight.shape[0], weight.shape[1]);
  weights_[weight.name] = std::move(weight);
}

// Returns [out, in].
at::Tensor QuantizedFolder::raw_codes(const std::string& base) const {
  const at::Tensor words = folder_.tensor(base + kCodes);
  if (format_.method == QuantizedFormat::Method::Awq) return codes_of_awq(words).t().contiguous();
  return codes_of_words(words, format_.bits).permute({1, 0, 2}).flatten(1).contiguous();
}

// Returns fp32 [out, groups].
at::Tensor QuantizedFolder::zeros(const std::string& base) const {
  const at::Tensor words = folder_.tensor(base + ".qzeros");
  if (format_.method == QuantizedFormat::Method::Awq) return codes_of_awq(words).t().to(at::kFloat).contiguous();
  at::Tensor zeros = codes_of_words(words, format_.bits).flatten(1).t();
  // Adding 1 wraps around, because other readers mask the sum too.
  if (format_.zeros_less_one) zeros = (zeros + 1).bitwise_and((1 << format_.bits) - 1);
  return zeros.to(at::kFloat).contiguous();
}

bool QuantizedFolder::is_symmetric(const std::string& base) const {
  const bool is_less_one = format_.method == QuantizedFormat::Method::Gptq && format_.zeros_less_one;
  const uint32_t stored = (1U << (format_.bits - 1)) - (is_less_one ? 1 : 0);
  uint32_t word = 0;
  for (int64_t bit = 0; bit < 32; bit += format_.bits) word |= stored << bit;
  return folder_.tensor(base + ".qzeros").eq(static_cast<int64_t>(static_cast<int32_t>(word))).all().item<bool>();
}

// Returns the group of each input; none = all groups consist of adjacent inputs.
std::optional<at::Tensor> QuantizedFolder::order(const std::string& base, const Sizes& sizes) const {
  if (!holds(base + ".g_idx")) return {};
  const at::Tensor groups = folder_.tensor(base + ".g_idx").to(at::kLong);
  const int64_t count = (sizes.inputs + sizes.group - 1) / sizes.group;
  require(groups.min().item<int64_t>() >= 0 && groups.max().item<int64_t>() < count, kFormat, path_, ": ",
          printable(base), ".g_idx must name groups of 0 to ", count - 1, ": got ", groups.min().item<int64_t>(),
          " to ", groups.max().item<int64_t>());
  if (at::equal(groups, at::arange(sizes.inputs, at::kLong).floor_divide(sizes.group))) return {};
  return groups;
}

std::optional<ops::GroupCodes> QuantizedFolder::codes(const std::string& name) const {
  if (!weights_.count(name)) return {};
  const std::string base = name.substr(0, name.size() - sizeof kWeight + 1);
  const Sizes& sizes = sizes_.at(base);
  if (order(base, sizes)) return {};
  const bool symmetric = is_symmetric(base);
  if (format_.bits == 8 && !symmetric) return {};
  ops::GroupCodes codes{.bits = format_.bits, .group = sizes.group, .codes = raw_codes(base)};
  codes.scales = folder_.tensor(base + ".scales").to(at::kFloat).t().contiguous();
  if (!symmetric) codes.minima = zeros(base) * codes.scales * -1;
  return codes;
}

std::optional<CodesForm> QuantizedFolder::codes_form(const std::string& name) const {
  if (!weights_.count(name)) return {};
  const std::string base = name.substr(0, name.size() - sizeof kWeight + 1);
  const Sizes& sizes = sizes_.at(base);
  const bool symmetric = is_symmetric(base);
  if (order(base, sizes) || (format_.bits == 8 && !symmetric)) return {};
  return CodesForm{.bits = format_.bits, .group = sizes.group, .minima = !symmetric};
}

at::Tensor QuantizedFolder::tensor(const std::string& name) const {
  if (!weights_.count(name)) return folder_.tensor(name);
  const std::string base = name.substr(0, name.size() - sizeof kWeight + 1);
  const Sizes& sizes = sizes_.at(base);
  at::Tensor scale = folder_.tensor(base + ".scales").to(at::kFloat).t(), zero = zeros(base);
  const at::Tensor group = order(base, sizes).value_or(at::arange(sizes.inputs, at::kLong).floor_divide(sizes.group));
  const at::Tensor weight =
      (raw_codes(base).to(at::kFloat) - zero.index_select(1, group)) * scale.index_select(1, group);
  return format_.transposed ? weight.t() : weight;
}

void QuantizedFolder::leave(const std::string& name) const {
  if (!weights_.count(name)) return folder_.leave(name);
  const std::string base = name.substr(0, name.size() - sizeof kWeight + 1);
  for (const char* end : {kCodes, ".qzeros", ".scales", ".g_idx"})
    if (holds(base + end)) folder_.leave(base + end);
}

}  // namespace colossal::checkpoint
