#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/folder_codes.h"
#include "colossal/checkpoint/quantized/folder.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::quantized_folder_test {
namespace {

using colossal::test::TemporaryFolder;
using nlohmann::json;
using testing::HasSubstr;

/// A quantized weight in the description of quantization programs, one value at a time.
struct Numbers {
  int64_t bits, inputs, outputs, group;
  std::vector<int> codes, zeros, groups;  // [inputs][outputs], [groups][outputs], [inputs]
  at::Tensor scales;                      // [groups][outputs], binary16

  int64_t group_count() const { return (inputs + group - 1) / group; }
  float value(int64_t k, int64_t n) const {
    const int64_t g = groups[k];
    return scales[g][n].item<float>() * static_cast<float>(codes[k * outputs + n] - zeros[g * outputs + n]);
  }
};

Numbers numbers(int64_t bits, int64_t group, bool about_zero) {
  std::mt19937 draw(7);
  Numbers n{bits, 32, 16, group, {}, {}, {}, {}};
  const int most = (1 << bits) - 1;
  for (int64_t i = 0; i < n.inputs * n.outputs; ++i) n.codes.push_back(1 + static_cast<int>(draw() % most));
  for (int64_t i = 0; i < n.group_count() * n.outputs; ++i)
    n.zeros.push_back(about_zero ? (most + 1) / 2 : 1 + static_cast<int>(draw() % most));
  for (int64_t k = 0; k < n.inputs; ++k) n.groups.push_back(static_cast<int>(k / group));
  std::vector<float> scales;
  for (int64_t i = 0; i < n.group_count() * n.outputs; ++i)
    scales.push_back(static_cast<float>(draw() % 999 + 1) / 4096);
  n.scales = at::tensor(scales).view({n.group_count(), n.outputs}).to(at::kHalf);
  return n;
}

/// Packs quantized values into a word: value i starts at bit bits * i.
int32_t word(const std::vector<int>& codes, int64_t bits) {
  uint32_t bits_of = 0;
  for (size_t i = 0; i < codes.size(); ++i)
    bits_of |= static_cast<uint32_t>(codes[i]) << (bits * static_cast<int64_t>(i));
  return static_cast<int32_t>(bits_of);
}

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor matrix(const std::vector<int32_t>& words, int64_t rows) { return at::tensor(words).view({rows, -1}); }

Tensors gptq(const Numbers& n, int less) {
  const int64_t in_word = 32 / n.bits, mask = (1 << n.bits) - 1;
  std::vector<int32_t> words, zeros;
  for (int64_t k = 0; k < n.inputs; k += in_word)
    for (int64_t o = 0; o < n.outputs; ++o) {
      std::vector<int> codes;
      for (int64_t i = 0; i < in_word; ++i) codes.push_back(n.codes[(k + i) * n.outputs + o]);
      words.push_back(word(codes, n.bits));
    }
  for (int64_t g = 0; g < n.group_count(); ++g)
    for (int64_t o = 0; o < n.outputs; o += in_word) {
      std::vector<int> codes;
      for (int64_t i = 0; i < in_word; ++i)
        codes.push_back(static_cast<int>((n.zeros[g * n.outputs + o + i] - less) & mask));
      zeros.push_back(word(codes, n.bits));
    }
  return {{"x.qweight", matrix(words, n.inputs / in_word)},
          {"x.qzeros", matrix(zeros, n.group_count())},
          {"x.scales", n.scales},
          {"x.g_idx", at::tensor(n.groups)}};
}

Tensors awq(const Numbers& n) {
  constexpr std::array<int64_t, 8> kOrder{0, 2, 4, 6, 1, 3, 5, 7};
  const auto words = [&](const std::vector<int>& codes) {
    std::vector<int32_t> out;
    for (size_t row = 0; row < codes.size(); row += 8) {
      std::vector<int> ordered;
      for (const int64_t place : kOrder) ordered.push_back(codes[row + place]);
      out.push_back(word(ordered, 4));
    }
    return out;
  };
  return {{"x.qweight", matrix(words(n.codes), n.inputs)},
          {"x.qzeros", matrix(words(n.zeros), n.group_count())},
          {"x.scales", n.scales}};
}

json says(const std::string& method, int64_t bits, int64_t group, const std::string& layout = "gptq") {
  return {{"quantization_config",
           {{"quant_method", method}, {"bits", bits}, {"group_size", group}, {"checkpoint_format", layout}}}};
}

void write(const std::string& folder, const json& config, const Tensors& tensors) {
  create_folder(folder);
  write_safetensors(folder + "/model.safetensors", tensors);
  write_file(folder + "/config.json", config.dump());
}

void expect_numbers(const std::string& folder, const Numbers& n, bool in_codes) {
  const auto files = open_weights(folder);
  ASSERT_EQ(files->entries().size(), 1u);
  ASSERT_EQ(files->entries().at("x.weight")->shape, (std::vector<int64_t>{n.outputs, n.inputs}));
  const at::Tensor weight = files->tensor("x.weight");
  const auto codes = files->codes("x.weight");
  ASSERT_EQ(codes.has_value(), in_codes);
  const auto form = files->codes_form("x.weight");
  ASSERT_EQ(form.has_value(), in_codes);
  if (in_codes) {
    EXPECT_EQ(*form, (CodesForm{.bits = n.bits, .group = n.group, .minima = codes->minima.defined()}));
    const int middle = 1 << (n.bits - 1);
    EXPECT_EQ(form->minima, std::any_of(n.zeros.begin(), n.zeros.end(), [&](int zero) { return zero != middle; }));
    EXPECT_TRUE(at::equal(codes->codes.t().to(at::kInt).flatten(), at::tensor(n.codes)));
    EXPECT_TRUE(at::equal(codes->scales, n.scales.to(at::kFloat).t()));
    EXPECT_TRUE(at::equal(codes->values(), weight));
  }
  for (int64_t k = 0; k < n.inputs; ++k)
    for (int64_t o = 0; o < n.outputs; ++o) EXPECT_EQ(weight[o][k].item<float>(), n.value(k, o)) << k << " " << o;
}

TEST(QuantizedFolder, ReadsEveryFormOfGptq) {
  for (const int64_t bits : {4, 8})
    for (const bool about_zero : {true, false})
      for (const std::string layout : {"gptq", "gptq_v2"}) {
        const TemporaryFolder folder;
        const Numbers n = numbers(bits, 16, about_zero);
        write(folder.path(), says("gptq", bits, 16, layout), gptq(n, layout == "gptq"));
        expect_numbers(folder.path(), n, bits == 4 || about_zero);
      }
}

TEST(QuantizedFolder, ReadsOneGroupAndAShortLastGroup) {
  for (const int64_t group : {-1, 24}) {
    const TemporaryFolder folder;
    const Numbers n = numbers(4, group < 0 ? 32 : group, false);
    write(folder.path(), says("gptq", 4, group), gptq(n, 1));
    expect_numbers(folder.path(), n, true);
  }
}

TEST(QuantizedFolder, DequantizesInputsInAnotherOrder) {
  const TemporaryFolder folder;
  Numbers n = numbers(4, 16, false);
  std::shuffle(n.groups.begin(), n.groups.end(), std::mt19937(3));
  write(folder.path(), says("gptq", 4, 16), gptq(n, 1));
  expect_numbers(folder.path(), n, false);
}

TEST(QuantizedFolder, ReadsAwq) {
  for (const bool about_zero : {true, false}) {
    const TemporaryFolder folder;
    const Numbers n = numbers(4, 16, about_zero);
    write(folder.path(), says("awq", 4, 16), awq(n));
    expect_numbers(folder.path(), n, true);
  }
}

// All matrices of a stack have one form, so those without minima get some.
TEST(QuantizedFolder, HasOneFormForTheMatricesOfAStack) {
  const std::vector<Numbers> experts{numbers(4, 16, true), numbers(4, 16, false)};
  Tensors tensors;
  for (size_t e = 0; e < experts.size(); ++e)
    for (const auto& [name, tensor] : gptq(experts[e], 1)) tensors[concat("e.", e, name.substr(1))] = tensor;
  const ExternalNames external{{{.ours = "stack", .parts = {"e.{}.weight"}, .stacked = true}}};
  const auto values_of = [](const Numbers& n) {
    std::vector<float> values;
    for (int64_t o = 0; o < n.outputs; ++o)
      for (int64_t k = 0; k < n.inputs; ++k) values.push_back(n.value(k, o));
    return at::tensor(values).view({n.outputs, n.inputs}).to(at::kDouble);
  };
  const TemporaryFolder folder;
  write(folder.path(), says("gptq", 4, 16), tensors);
  for (const auto& [ranks, rank] : {std::pair{1, 0}, {2, 0}, {2, 1}}) {
    nn::Parameters parameters(tensor::MeshCoordinates({{"expert", ranks, rank}}),
                              {.dtype = at::kDouble, .treatment = [](const std::string&) {
                                 return nn::Treatment{.trains = false, .saved = false};
                               }});
    nn::Parameter& stack = parameters.add("stack", tensor::ShardSpec::split({2, 16, 32}, 0, {"expert"}), {}, true);
    stack.is_stack = true;
    const auto matrices = coded_matrices(folder.path(), parameters, external);
    ASSERT_EQ(matrices.size(), 1u);
    EXPECT_EQ(matrices.at("stack").front().codes, (CodesForm{.bits = 4, .group = 16, .minima = true}));
    parameters.store_as(stack, nn::make_folder_form(stack, matrices.at("stack"), parameters.coordinates()));
    import_weights(folder.path(), parameters, external);
    const auto form = parameters.form_of(stack);
    ASSERT_EQ(stack.value.size(0), 2 / ranks);
    for (int64_t e = 0; e < stack.value.size(0); ++e)
      EXPECT_TRUE(at::equal(form->decode(stack.value[e], at::kDouble), values_of(experts[rank + e])));
  }
  Tensors mixed = tensors;  // one matrix has its inputs in another order
  mixed["e.1.g_idx"] = tensors["e.1.g_idx"].flip(0);
  const TemporaryFolder other;
  write(other.path(), says("gptq", 4, 16), mixed);
  nn::Parameters parameters({}, {});
  parameters.add("stack", tensor::ShardSpec::whole({2, 16, 32}), {}, true).is_stack = true;
  EXPECT_TRUE(coded_matrices(other.path(), parameters, external).empty());
}

std::string refusal(const json& config, const Tensors& tensors) {
  const TemporaryFolder folder;
  write(folder.path(), config, tensors);
  return test::thrown_message([&] {
    const auto files = open_weights(folder.path());
    files->codes("x.weight");
  });
}

TEST(QuantizedFolder, RefusesUnsupportedFormats) {
  const Tensors sound = gptq(numbers(4, 16, false), 1);
  for (const char* method : {"bitsandbytes", "fp8", "compressed-tensors"})
    EXPECT_THAT(refusal(says(method, 4, 16), sound), HasSubstr(method));
  EXPECT_THAT(refusal({{"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}}}, sound),
              HasSubstr("convert the folder to bf16 first"));
  EXPECT_THAT(refusal(says("gptq", 3, 16), sound), HasSubstr("4 or 8 bits: got 3"));
  EXPECT_THAT(refusal(says("awq", 8, 16), sound), HasSubstr("awq must have 4 bits"));
  EXPECT_THAT(refusal(says("gptq", 4, 12), sound), HasSubstr("group_size"));
  EXPECT_THAT(refusal(says("gptq", 4, 16, "marlin"), sound), HasSubstr("checkpoint_format"));
  EXPECT_THAT(refusal({{"quantization_config", {{"quant_method", "gptq"}}}}, sound), HasSubstr("must have bits"));
  EXPECT_THAT(refusal({{"quantization_config", 3}}, sound), HasSubstr("must be an object"));
  for (const auto& [name, tensor] : sound) {
    Tensors damaged = sound;
    damaged[name] = tensor.narrow(0, 0, tensor.size(0) - 1).clone();
    EXPECT_THAT(refusal(says("gptq", 4, 16), damaged), HasSubstr("must ")) << name;
    damaged[name] = tensor.to(at::kLong);
    EXPECT_THAT(refusal(says("gptq", 4, 16), damaged), HasSubstr("must be")) << name;
    damaged.erase(name);
    if (name != "x.g_idx" && name != "x.qweight") {
      EXPECT_THAT(refusal(says("gptq", 4, 16), damaged), HasSubstr("missing")) << name;
    }
  }
  for (const int32_t group : {-1, 2}) {
    Tensors damaged = sound;
    damaged["x.g_idx"] = at::full({32}, group, at::kInt);
    EXPECT_THAT(refusal(says("gptq", 4, 16), damaged), HasSubstr("groups of 0 to 1"));
  }
  Tensors twice = sound;
  twice["x.weight"] = at::zeros({16, 32});
  EXPECT_THAT(refusal(says("gptq", 4, 16), twice), HasSubstr("stored both quantized and not"));
}

}  // namespace
}  // namespace colossal::checkpoint::quantized_folder_test
