// Folders of bitsandbytes in NF4, and parts of parameters in NF4 from any folder.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/sample_state.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/hugging_face/folder_codes.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/ops/products/nf4_levels.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::bitsandbytes_test {
namespace {

using colossal::test::TemporaryFolder;
using nlohmann::json;
using testing::HasSubstr;

using Tensors = std::map<std::string, at::Tensor>;

std::string stored(const std::string& name) { return test::source_dir() + "/tests/checkpoint/bitsandbytes/" + name; }

Tensors tensors_of(const std::string& path) {
  const SafetensorsReader reader(path);
  Tensors all;
  for (const auto& [name, entry] : reader.entries()) all[name] = reader.tensor(name).clone();
  return all;
}

// bitsandbytes/make_folders.py has written the folders and what bitsandbytes reads back.
TEST(Bitsandbytes, ReadsFoldersToTheBit) {
  for (const std::string folder : {"single", "double"}) {
    const auto files = open_weights(stored(folder));
    const Tensors expected = tensors_of(stored(folder) + "/expected.safetensors");
    ASSERT_EQ(expected.size(), 14u);
    for (const auto& [name, values] : expected) {
      if (!name.ends_with(".values")) continue;
      const std::string weight = name.substr(0, name.size() - 6) + "weight";
      const at::Tensor read = files->tensor(weight);
      EXPECT_EQ(read.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(read.to(values.scalar_type()), values)) << folder << " " << name;
      EXPECT_EQ(files->entries().at(weight)->shape, values.sizes().vec());
      const auto codes = files->nf4(weight);
      ASSERT_TRUE(codes.has_value());
      EXPECT_EQ(codes->form().double_quantized, folder == "double");
      EXPECT_EQ(files->codes_form(weight), (CodesForm{.is_nf4 = true, .double_quantized = folder == "double"}));
      EXPECT_TRUE(at::equal(ops::dequantize(*codes, at::kFloat), read));
    }
    EXPECT_EQ(files->entries().size(), 7u + 5) << "other tensors of " << folder;
    EXPECT_FALSE(files->nf4("lm_head.weight").has_value());
    EXPECT_FALSE(files->codes_form("lm_head.weight").has_value());
    EXPECT_FALSE(read_config(stored(folder)).contains("quantization_config"));
  }
}

TEST(Bitsandbytes, QuantizesToTheSameCodes) {
  for (const std::string folder : {"single", "double"}) {
    const auto files = open_weights(stored(folder));
    for (const auto& [name, values] : tensors_of(stored(folder) + "/expected.safetensors")) {
      if (!name.ends_with(".weight")) continue;
      const ops::Nf4Weight theirs = *files->nf4(name);
      const ops::Nf4Weight ours = ops::quantize_nf4(values, {.double_quantized = folder == "double"});
      const int64_t bytes = (values.numel() + 1) / 2;  // without the padding of the last block
      EXPECT_TRUE(at::equal(ours.codes().flatten().narrow(0, 0, bytes), theirs.codes().flatten().narrow(0, 0, bytes)));
      EXPECT_TRUE(at::equal(ours.stored_absmax(), theirs.stored_absmax())) << folder << " " << name;
    }
  }
}

/// The tensors of a weight "x" as bitsandbytes stores it.
Tensors as_bitsandbytes(const ops::Nf4Weight& weight, const std::string& x) {
  const int64_t rows = weight.form().rows, columns = weight.form().columns;
  json state{{"quant_type", "nf4"}, {"blocksize", 64}, {"dtype", "float32"}, {"shape", {rows, columns}}};
  const int64_t bytes = (rows * columns + 1) / 2;
  Tensors all{{x, weight.codes().flatten().narrow(0, 0, bytes).unsqueeze(1).clone()},
              {x + ".absmax", weight.stored_absmax().clone()},
              {x + ".quant_map", at::tensor(at::ArrayRef<float>(ops::kNf4Levels))}};
  if (weight.form().double_quantized) {
    all[x + ".nested_absmax"] = weight.nested_absmax().clone();
    all[x + ".nested_quant_map"] = weight.nested_values().clone();
    state["nested_blocksize"] = 256, state["nested_dtype"] = "float32";
    state["nested_offset"] = weight.nested_mean().item<double>();
  }
  const std::string text = state.dump();
  all[x + ".quant_state.bitsandbytes__nf4"] = at::tensor(std::vector<uint8_t>(text.begin(), text.end()), at::kByte);
  return all;
}

json says(const std::string& type, const std::string& model = "llama") {
  return {{"model_type", model},
          {"quantization_config",
           {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", type}}}};
}

void write(const std::string& folder, const json& config, const Tensors& tensors) {
  create_folder(folder);
  write_safetensors(folder + "/model.safetensors", tensors);
  write_file(folder + "/config.json", config.dump());
}

std::string refusal(const json& config, const Tensors& tensors) {
  const TemporaryFolder folder;
  write(folder.path(), config, tensors);
  return test::thrown_message([&] { open_weights(folder.path()); });
}

TEST(Bitsandbytes, RefusesOtherFormats) {
  const Tensors sound = as_bitsandbytes(ops::quantize_nf4(sample_values({8, 40}, at::kFloat, 1), {}), "x.weight");
  EXPECT_EQ(refusal(says("nf4"), sound), "");
  EXPECT_THAT(refusal(says("fp4"), sound), HasSubstr("bnb_4bit_quant_type of bitsandbytes must be nf4: got fp4"));
  json eight = says("nf4");
  eight["quantization_config"]["load_in_8bit"] = true;
  EXPECT_THAT(refusal(eight, sound), HasSubstr("must have 4 bits: got load_in_8bit"));
  Tensors fp4 = sound;
  fp4["x.weight.quant_state.bitsandbytes__fp4"] = fp4.extract("x.weight.quant_state.bitsandbytes__nf4").mapped();
  EXPECT_THAT(refusal(says("nf4"), fp4), HasSubstr("must be in nf4: got x.weight.quant_state.bitsandbytes__fp4"));
  for (const auto& [name, tensor] : sound) {
    Tensors damaged = sound;
    if (!name.ends_with("nf4")) {  // without its state a weight is plain bytes, which a model refuses
      damaged.erase(name);
      EXPECT_THAT(refusal(says("nf4"), damaged), HasSubstr("which is missing")) << name;
    }
    damaged[name] = tensor.narrow(0, 0, tensor.size(0) - 1).clone();
    EXPECT_NE(refusal(says("nf4"), damaged), "") << name;
  }
  Tensors levels = sound;
  levels["x.weight.quant_map"][3] += 1e-3;
  EXPECT_THAT(refusal(says("nf4"), levels), HasSubstr("must have the levels of nf4"));
  for (const char* text :
       {R"({"quant_type": "nf4", "blocksize": 128, "shape": [8, 40]})", R"({"quant_type": "nf4"})",
        R"({"quant_type": "nf4", "blocksize": 64, "shape": [8, -40]})",
        R"({"quant_type": "nf4", "blocksize": 64, "shape": [8]})",
        R"({"quant_type": "nf4", "blocksize": 64, "shape": [8, 40], "nested_offset": "1"})", "[]", "{"}) {
    Tensors damaged = sound;
    const std::string state = text;
    damaged["x.weight.quant_state.bitsandbytes__nf4"] =
        at::tensor(std::vector<uint8_t>(state.begin(), state.end()), at::kByte);
    EXPECT_THAT(refusal(says("nf4"), damaged), HasSubstr("[quantization]")) << text;
  }
}

TEST(Bitsandbytes, ReadsCodesInAnotherStorageDtype) {
  const ops::Nf4Weight weight = ops::quantize_nf4(sample_values({8, 40}, at::kFloat, 1), {});
  Tensors tensors = as_bitsandbytes(weight, "x.weight");
  tensors["x.weight"] = tensors["x.weight"].flatten().view(at::kBFloat16).unsqueeze(1);
  const TemporaryFolder folder;
  write(folder.path(), says("nf4"), tensors);
  EXPECT_TRUE(at::equal(open_weights(folder.path())->tensor("x.weight"), ops::dequantize(weight, at::kFloat)));
}

// GPT-2's layers are [in, out]; bitsandbytes quantizes their transposes.
TEST(Bitsandbytes, TransposesTheLayersOfGpt2) {
  const ops::Nf4Weight weight = ops::quantize_nf4(sample_values({8, 40}, at::kFloat, 1), {});
  const TemporaryFolder folder;
  write(folder.path(), says("nf4", "gpt2"), as_bitsandbytes(weight, "x.weight"));
  const auto files = open_weights(folder.path());
  EXPECT_EQ(files->entries().at("x.weight")->shape, (std::vector<int64_t>{40, 8}));
  EXPECT_TRUE(at::equal(files->tensor("x.weight"), ops::dequantize(weight, at::kFloat).t()));
}

/// A fused matrix with rows of padding on two ranks, a matrix that is cut by inputs, and a transposed one.
nn::Parameters model(const tensor::MeshCoordinates& coordinates) {
  using tensor::ShardSpec;
  const std::vector<std::string> axes{"tensor"};
  nn::Parameters parameters(coordinates, {.dtype = at::kFloat, .treatment = [](const std::string&) {
                                            return nn::Treatment{.trains = false, .saved = false};
                                          }});
  parameters.add("qkv.weight", ShardSpec::split({32, 48}, 0, axes, {{16, 4}, {8, 4, true}, {8, 4, true}}), {}, true);
  parameters.add("down.weight", ShardSpec::split({16, 66}, 1, axes), {}, true);
  parameters.add("head.weight", ShardSpec::split({35, 48}, 0, axes), {}, true);
  parameters.add("c.weight", ShardSpec::split({24, 40}, 0, axes, {{12}, {12}}), {}, true);
  parameters.add("norm.weight", ShardSpec::whole({48}), {}, false);
  return parameters;
}

ExternalNames names() {
  return {{{"qkv.weight", {"q.weight", "k.weight", "v.weight"}},
           {"down.weight", {"down.weight"}},
           {"head.weight", {"head.weight"}},
           {"c.weight", {"c.weight"}, true},
           {"norm.weight", {"norm.weight"}}},
          "",
          {}};
}

const std::vector<std::pair<std::string, std::vector<int64_t>>> kSizes{
    {"q.weight", {16, 48}},    {"k.weight", {8, 48}},     {"v.weight", {8, 48}},
    {"down.weight", {16, 66}}, {"head.weight", {35, 48}}, {"c.weight", {40, 24}}};

using Matrices = std::map<std::string, at::Tensor>;

/// Imports a folder, and returns the values of the parameters whose codes are taken.
Matrices taken(const std::string& folder, nn::Parameters& parameters) {
  const auto matrices = coded_matrices(folder, parameters, names());
  for (const auto& [name, own] : matrices)
    parameters.store_as(parameters.at(name), nn::make_folder_form(parameters.at(name), own, parameters.coordinates()));
  import_weights(folder, parameters, names());
  Matrices read;
  for (const auto& [name, own] : matrices) {
    const nn::Parameter& p = parameters.at(name);
    read[name] = parameters.form_of(p)->decode(p.value, at::kFloat);
  }
  return read;
}

TEST(Nf4Import, TakesTheCodesOfTheFolder) {
  for (const bool double_quantized : {false, true}) {
    const TemporaryFolder folder;
    Tensors tensors{{"norm.weight", at::ones({48})}};
    for (const auto& [name, size] : kSizes) {
      const at::Tensor values = sample_values(size, at::kFloat, 9) / 64;
      if (name == "c.weight")
        tensors[name] = values;  // not quantized
      else
        tensors.merge(as_bitsandbytes(ops::quantize_nf4(values, {double_quantized}), name));
    }
    write(folder.path(), says("nf4"), tensors);
    nn::Parameters whole = model(tensor::MeshCoordinates({{"tensor", 1, 0}})),
                   numbers = model(tensor::MeshCoordinates({{"tensor", 1, 0}}));
    const Matrices read = taken(folder.path(), whole);
    EXPECT_EQ(read.size(), 3u) << "all but the plain matrix";
    import_weights(folder.path(), numbers, names());
    for (const auto& [name, values] : read) EXPECT_TRUE(at::equal(values, numbers.at(name).value)) << name;
    for (const int ranks : {2, 4})
      for (int rank = 0; rank < ranks; ++rank) {
        const tensor::MeshCoordinates coordinates({{"tensor", ranks, rank}});
        nn::Parameters parameters = model(coordinates);
        for (const auto& [name, values] : taken(folder.path(), parameters))
          EXPECT_TRUE(at::equal(values, local_part(read.at(name), parameters.at(name).spec, coordinates)))
              << name << " on rank " << rank << " of " << ranks;
      }
  }
}

// The rows of a tensor belong to two matrices in turn.
TEST(Nf4Import, TakesRowsInSteps) {
  const ops::Nf4Weight weight = ops::quantize_nf4(sample_values({16, 43}, at::kFloat, 3) / 64, {});
  const TemporaryFolder folder;
  write(folder.path(), says("nf4"), as_bitsandbytes(weight, "x.weight"));
  nn::Parameters parameters({}, {.dtype = at::kFloat, .treatment = [](const std::string&) {
                                   return nn::Treatment{.trains = false, .saved = false};
                                 }});
  const nn::Parameter& x = parameters.add("x", tensor::ShardSpec::whole({16, 43}), {}, true);
  const ExternalNames external{{{.ours = "x", .parts = {{"x.weight", 0, 8, 2}, {"x.weight", 1, 8, 2}}}}};
  const auto matrices = coded_matrices(folder.path(), parameters, external);
  parameters.store_as(x, nn::make_folder_form(x, matrices.at("x"), {}));
  import_weights(folder.path(), parameters, external);
  const at::Tensor near = ops::dequantize(weight, at::kFloat);
  EXPECT_TRUE(at::equal(parameters.form_of(x)->decode(x.value, at::kFloat),
                        at::cat({near.slice(0, 0, 16, 2), near.slice(0, 1, 16, 2)})));
}

}  // namespace
}  // namespace colossal::checkpoint::bitsandbytes_test
