// Quantized folders that this library writes: what is read again, by whole ranks and shards, and what is refused.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/sample_state.h"
#include "colossal/base/error.h"
#include "colossal/checkpoint/quantized/export.h"
#include "colossal/checkpoint/quantized/folder.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::quantized_export_test {
namespace {

using colossal::test::TemporaryFolder;
using nlohmann::json;
using testing::HasSubstr;

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
}  // namespace colossal::checkpoint::quantized_export_test
