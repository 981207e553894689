#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "checkpoint/sample_state.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/quantized/export.h"
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
  EXPECT_EQ(files->codes_form("x.weight"), (CodesForm{.bits = n.bits, .group = n.group, .minima = n.bits == 4}));
  if (in_codes) {
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

nn::Parameters model(const tensor::MeshCoordinates& coordinates) {
  using tensor::ShardSpec;
  const std::vector<std::string> axes{"tensor"};
  const std::vector<tensor::Segment> heads{{16, 4}, {8, 4, true}, {8, 4, true}};
  nn::Parameters parameters(coordinates, {at::kFloat});
  parameters.add("qkv.weight", ShardSpec::split({32, 48}, 0, axes, heads), {}, true);
  parameters.add("down.weight", ShardSpec::split({16, 64}, 1, axes), {}, true);
  parameters.add("norm.weight", ShardSpec::whole({48}), {}, false);
  return parameters;
}

ExternalNames names() {
  return {{{"qkv.weight", {"q.weight", "k.weight", "v.weight"}},
           {"down.weight", {"down.weight"}},
           {"norm.weight", {"norm.weight"}}},
          "",
          {}};
}

using CodesByName = std::map<std::string, ops::GroupCodes>;

CodesByName export_model(const std::string& folder, const ops::RoundingOptions& options) {
  nn::Parameters parameters = model(tensor::MeshCoordinates({{"tensor", 1, 0}}));
  CodesByName codes;
  for (nn::Parameter& p : parameters) {
    p.value.detach().copy_(sample_values(p.spec.shape, at::kFloat, 5) / 64);
    if (p.spec.shape.size() == 2) codes[p.name] = ops::round_to_codes(p.value.detach(), options);
  }
  export_gptq(folder, parameters, codes, names(), {{"hidden_size", 48}}, at::kFloat);
  return codes;
}

CodesByName taken(const std::string& folder, nn::Parameters& parameters) {
  std::vector<NamedTensor> values;
  for (const nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach(), p.spec, {}});
  CodesByName codes;
  import_weights(folder, parameters, values, names(), [&](const std::string& name, const ReadCodes& read) {
    if (const auto its = read()) codes[name] = *its;
    return false;
  });
  return codes;
}

// Their values may be damaged, which must be found before the model is used.
TEST(QuantizedExport, ReadsItsFoldersAtOnce) {
  const TemporaryFolder folder;
  export_model(folder.path(), {8, 16});
  nn::Parameters parameters = model(tensor::MeshCoordinates({{"tensor", 1, 0}}));
  std::vector<NamedTensor> values;
  for (const nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach(), p.spec, {}});
  import_weights(folder.path(), parameters, values, names(), {}, {},
                 [](const std::string& name, const std::function<void()>&) {
                   ADD_FAILURE() << name;
                   return true;
                 });
}

TEST(QuantizedExport, RoundTripsQuantizedValues) {
  for (const ops::RoundingOptions& options :
       {ops::RoundingOptions{8, 16}, ops::RoundingOptions{4, 16}, ops::RoundingOptions{4, 16, true, true}}) {
    const TemporaryFolder folder;
    const CodesByName written = export_model(folder.path(), options);
    nn::Parameters parameters = model(tensor::MeshCoordinates({{"tensor", 1, 0}}));
    const CodesByName read = taken(folder.path(), parameters);
    ASSERT_EQ(read.size(), 2u);
    for (const auto& [name, codes] : written) {
      EXPECT_TRUE(at::equal(read.at(name).codes, codes.codes)) << name;
      EXPECT_TRUE(at::equal(read.at(name).values(), codes.values())) << name;
      EXPECT_EQ(read.at(name).minima.defined(), options.minima);
      EXPECT_TRUE(at::equal(parameters.at(name).value, codes.values())) << name;
    }
    EXPECT_TRUE(at::equal(parameters.at("norm.weight").value, sample_values({48}, at::kFloat, 5) / 64));
    EXPECT_EQ(read_config(folder.path()), (json{{"hidden_size", 48}}));
  }
}

TEST(QuantizedExport, LoadsShardsOfQuantizedValues) {
  for (const int64_t group : {16, 48}) {
    const TemporaryFolder folder;
    const CodesByName written = export_model(folder.path(), {.bits = 4, .group = group});
    for (int rank = 0; rank < 2; ++rank) {
      nn::Parameters parameters = model(tensor::MeshCoordinates({{"tensor", 2, rank}}));
      const CodesByName read = taken(folder.path(), parameters);
      // Inputs are split at 32 of 64. This is inside a group of 48, so only dequantized values can be loaded.
      EXPECT_EQ(read.count("down.weight"), group == 16 ? 1u : 0u);
      for (const nn::Parameter& p : parameters) {
        if (p.spec.shape.size() < 2) continue;
        const at::Tensor part = local_part(written.at(p.name).values(), p.spec, parameters.coordinates());
        EXPECT_TRUE(at::equal(p.value.detach(), part)) << p.name;
        if (read.count(p.name)) {
          EXPECT_TRUE(at::equal(read.at(p.name).values(), part)) << p.name;
        }
      }
    }
  }
}

/// Names of a stack of four experts, which the folder stores expert by expert.
ExternalNames stack_names() {
  return {
      .names = {{.ours = "experts.gate_up.weight", .parts = {"e.{}.gate.weight", "e.{}.up.weight"}, .stacked = true}}};
}

nn::Parameters stack_model(const tensor::MeshCoordinates& coordinates) {
  nn::Parameters parameters(coordinates, {});
  const std::vector<int64_t> shape{4, 16, 32};
  const std::vector<tensor::Segment> each{tensor::Segment{4, 1}}, halves(2, tensor::Segment{8});
  auto spec = tensor::ShardSpec::split(shape, 0, {"expert"}, each);
  spec.splits[1] = tensor::ShardSpec::split(shape, 1, {"tensor"}, halves).splits[1];
  nn::Parameter& stack = parameters.add("experts.gate_up.weight", spec, nn::Init::normal(1), true);
  stack.is_stack = stack.hidden_matrix = true;
  return parameters;
}

TEST(QuantizedExport, RoundTripsEachExpertOfAStack) {
  const TemporaryFolder folder;
  nn::Parameters whole = stack_model(tensor::MeshCoordinates({{"expert", 1, 0}, {"tensor", 1, 0}}));
  const at::Tensor value = (*whole.begin()).value.detach();
  CodesByName written;
  for (int64_t e = 0; e < 4; ++e)
    written[concat("experts.gate_up.weight.", e)] = ops::round_to_codes(value[e], {.bits = 4, .group = 16});
  export_gptq(folder.path(), whole, written, stack_names(), {{"hidden_size", 32}}, at::kFloat);
  for (const int expert : {0, 1})
    for (const int tensor : {0, 1}) {
      nn::Parameters own = stack_model(tensor::MeshCoordinates({{"expert", 2, expert}, {"tensor", 2, tensor}}));
      std::vector<NamedTensor> values;
      for (const nn::Parameter& p : own) values.push_back({p.name, p.value.detach(), p.spec, {}});
      CodesByName read;
      import_weights(folder.path(), own, values, stack_names(),
                     [&](const std::string& name, const ReadCodes& codes) { return read[name] = *codes(), false; });
      ASSERT_EQ(read.size(), 2u);
      for (const int64_t e : {2 * expert, 2 * expert + 1}) {
        const at::Tensor all = written.at(concat("experts.gate_up.weight.", e)).values();
        const at::Tensor want = at::cat({all.narrow(0, 4 * tensor, 4), all.narrow(0, 8 + 4 * tensor, 4)});
        const std::string name = concat("experts.gate_up.weight.", e);
        ASSERT_TRUE(read.contains(name)) << name;
        EXPECT_TRUE(at::equal(read.at(name).values(), want)) << name << " " << tensor;
        EXPECT_TRUE(at::equal(values.front().value.read().value[e - 2 * expert], want)) << "decoded " << name;
      }
    }
}

TEST(QuantizedExport, LeavesExpertsThatAreTakenUnread) {
  const TemporaryFolder folder;
  const tensor::MeshCoordinates one({{"expert", 1, 0}, {"tensor", 1, 0}});
  nn::Parameters whole = stack_model(one);
  CodesByName written;
  for (int64_t e = 0; e < 4; ++e)
    written[concat("experts.gate_up.weight.", e)] =
        ops::round_to_codes((*whole.begin()).value.detach()[e], {.bits = 8, .group = 16});
  export_gptq(folder.path(), whole, written, stack_names(), {{"hidden_size", 32}}, at::kFloat);
  for (const bool takes_all : {true, false}) {
    const at::Tensor value = at::full({4, 16, 32}, 7, at::kFloat);
    const std::vector<NamedTensor> values{{"experts.gate_up.weight", value, (*whole.begin()).spec, {}}};
    import_weights(folder.path(), whole, values, stack_names(), [&](const std::string& name, const ReadCodes&) {
      return takes_all || name != "experts.gate_up.weight.2";
    });
    EXPECT_EQ(at::equal(value, at::full_like(value, 7)), takes_all);
  }
}

TEST(QuantizedExport, RefusesUnsupportedQuantizedValues) {
  nn::Parameters parameters = model(tensor::MeshCoordinates({{"tensor", 1, 0}}));
  const at::Tensor weight = sample_values({16, 64}, at::kFloat, 5);
  const auto refused = [&](const CodesByName& codes) -> std::string {
    const TemporaryFolder folder;
    return test::thrown_message([&] { export_gptq(folder.path(), parameters, codes, names(), json::object()); });
  };
  EXPECT_THAT(refused({}), HasSubstr("at least one weight"));
  EXPECT_THAT(refused({{"other.weight", ops::round_to_codes(weight, {})}}), HasSubstr("other.weight"));
  EXPECT_THAT(refused({{"qkv.weight", ops::round_to_codes(weight, {})}}), HasSubstr("must be [32, 48]"));
  EXPECT_THAT(refused({{"down.weight", ops::round_to_codes(weight, {.bits = 4, .group = 16, .minima = true})}}),
              HasSubstr("whole_zeros"));
  EXPECT_THAT(refused({{"down.weight", ops::round_to_codes(weight, {.bits = 4, .group = 16})},
                       {"qkv.weight", ops::round_to_codes(sample_values({32, 48}, at::kFloat, 1), {.group = 16})}}),
              HasSubstr("must be quantized alike"));
}

TEST(QuantizedExport, NamesWaysForSizesThatFillNoWord) {
  const auto refused = [&](int64_t bits, const tensor::ShardSpec& spec) {
    nn::Parameters own(tensor::MeshCoordinates({{"tensor", 1, 0}}), {at::kFloat});
    own.add("down.weight", spec, {}, true);
    const ExternalNames external{{{"down.weight", {"down.weight"}}}, "", {}};
    return test::thrown_message([&] { check_gptq(own, {"down.weight"}, bits, external); });
  };
  const auto whole = [](int64_t outputs, int64_t inputs) { return tensor::ShardSpec::whole({outputs, inputs}); };
  EXPECT_EQ(refused(4, whole(16, 24)), "");
  EXPECT_EQ(refused(8, whole(12, 20)), "");
  EXPECT_THAT(refused(4, whole(12, 24)),
              HasSubstr("multiples of 8 to be quantized to 4 bits in a folder: got 12 and 24; use --bits 8, or "
                        "quantize while loading, which takes all sizes: --quantize=int4"));
  EXPECT_THAT(refused(4, whole(16, 30)), HasSubstr("got 16 and 30; quantize while loading"));
  EXPECT_THAT(refused(8, whole(16, 30)), HasSubstr("multiples of 4 to be quantized to 8 bits"));
}

}  // namespace
}  // namespace colossal::checkpoint::quantized_folder_test
