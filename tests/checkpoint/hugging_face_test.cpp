#include "colossal/checkpoint/hugging_face/hugging_face.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "checkpoint/sample_state.h"
#include "colossal/base/error.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/group.h"
#include "colossal/comm/run_ranks.h"
#include "support/ranks_values.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::hugging_face_test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
namespace fs = std::filesystem;

/// Declares a model with every kind of name: plain, fused rows with replicated segments, transposed, more dimensions, a
/// bias, a padded vocabulary, rows of tensors in another order and of several parameters.
void declare(nn::Parameters& parameters) {
  using tensor::ShardSpec;
  const std::vector<std::string> axes{"tensor"};
  const std::vector<tensor::Segment> heads{{12, 3}, {6, 3, true}, {6, 3, true}};
  parameters.add("embedding.weight", ShardSpec::split({11, 6}, 0, axes), {}, true);
  parameters.add("qkv.weight", ShardSpec::split({24, 6}, 0, axes, heads), {}, true);
  parameters.add("qkv.bias", ShardSpec::split({24}, 0, axes, heads), {}, false);
  parameters.add("up.weight", ShardSpec::split({8, 6}, 0, axes), {}, true);
  parameters.add("down.weight", ShardSpec::split({6, 8}, 1, axes), {}, true);
  parameters.add("norm.weight", ShardSpec::whole({6}), {}, false);
  parameters.add("fused.weight", ShardSpec::split({24, 6}, 0, axes, heads), {}, true);
  parameters.add("fused.bias", ShardSpec::split({24}, 0, axes, heads), {}, false);
  parameters.add("gate.weight", ShardSpec::split({5, 6}, 0, axes), {}, true);
  parameters.add("value.weight", ShardSpec::split({7, 6}, 1, axes), {}, true);
}

nn::Parameters model(const tensor::MeshCoordinates& coordinates, at::ScalarType dtype = at::kFloat) {
  nn::Parameters parameters(coordinates, {dtype});
  declare(parameters);
  return parameters;
}

/// Returns the rows of 2 groups, each with 2 heads of q, one of k and one of v, with 3 features, like Falcon. The
/// features of q are in the order 0 2 1, as if pairs were adjacent.
std::vector<nn::ExternalRows> fused_rows(const std::string& tensor) {
  std::vector<nn::ExternalRows> rows;
  for (const int64_t head : {0, 3, 12, 15}) {
    rows.emplace_back(tensor, head, 2, 2);
    rows.emplace_back(tensor, head + 1, 1);
  }
  for (const int64_t head : {6, 18, 9, 21}) rows.emplace_back(tensor, head, 3);
  return rows;
}

ExternalNames names() {
  return {{{"embedding.weight", {"model.embed.weight"}},
           {"qkv.weight", {"model.q.weight", "model.k.weight", "model.v.weight"}},
           {"qkv.bias", {"model.q.bias", "model.k.bias", "model.v.bias"}},
           {"up.weight", {"model.up.weight"}, true},
           {"down.weight", {"model.down.weight"}, true, 2},
           {"norm.weight", {"model.norm.weight"}},
           {"fused.weight", fused_rows("model.qkv.weight")},
           {"fused.bias", fused_rows("model.qkv.bias")},
           {"gate.weight", {{"model.pair.weight", 10, 2}, {"model.pair.weight", 1, 3, 3}}, true},
           {"value.weight", {{"model.pair.weight", 0, 4, 3}, {"model.pair.weight", 2, 3, 3}}, true}},
          "model.",
          {"*.rotary.inv_freq", "lm_head.weight"}};
}

at::Tensor whole_value(const nn::Parameter& parameter, at::ScalarType dtype) {
  return sample_values(parameter.spec.shape, dtype, static_cast<int64_t>(parameter.own_name().size()));
}

void expect_sample_values(const nn::Parameters& parameters) {
  for (const nn::Parameter& p : parameters) {
    const at::Tensor whole = whole_value(p, p.value.scalar_type());
    EXPECT_TRUE(same_bits(p.value.detach(), local_part(whole, p.spec, parameters.coordinates()))) << p.name;
  }
}

/// Returns the tensors of a folder that a serial export writes, built here by hand.
std::map<std::string, at::Tensor> folder_tensors() {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, at::Tensor> whole;
  const nn::Parameters parameters = model({});
  for (const nn::Parameter& p : parameters) whole[p.name] = whole_value(p, at::kFloat);
  tensors["model.embed.weight"] = whole["embedding.weight"];
  for (const std::string kind : {"weight", "bias"}) {
    tensors["model.q." + kind] = whole["qkv." + kind].narrow(0, 0, 12);
    tensors["model.k." + kind] = whole["qkv." + kind].narrow(0, 12, 6);
    tensors["model.v." + kind] = whole["qkv." + kind].narrow(0, 18, 6);
  }
  tensors["model.up.weight"] = whole["up.weight"].t();
  tensors["model.down.weight"] = whole["down.weight"].t().unsqueeze(0).unsqueeze(0);
  tensors["model.norm.weight"] = whole["norm.weight"];
  for (const std::string kind : {"weight", "bias"}) {
    const at::Tensor& ours = whole["fused." + kind];
    // The indices are our row numbers in the order of the file: q 0 to 11, k 12 to 17, v 18 to 23.
    tensors["model.qkv." + kind] = ours.index_select(
        0,
        at::tensor({0, 2, 1, 3, 5, 4, 12, 13, 14, 18, 19, 20, 6, 8, 7, 9, 11, 10, 15, 16, 17, 21, 22, 23}, at::kLong));
  }
  const at::Tensor both = at::cat({whole["gate.weight"], whole["value.weight"]});  // rows 0 to 4, and 5 to 11
  tensors["model.pair.weight"] =
      both.index_select(0, at::tensor({5, 2, 9, 6, 3, 10, 7, 4, 11, 8, 0, 1}, at::kLong)).t();
  return tensors;
}

std::string refusal(const std::string& folder, nn::Parameters parameters = model({})) {
  for (nn::Parameter& p : parameters) p.value.detach().fill_(7);
  try {
    import_weights(folder, parameters, names());
    return "loaded";
  } catch (const Error& error) {
    for (const nn::Parameter& p : parameters) EXPECT_TRUE(p.value.eq(7).all().item<bool>()) << "changed: " << p.name;
    return error.what();
  }
}

TEST(HuggingFace, FindsOldEndings) {
  test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors = folder_tensors();
  tensors["norm.gamma"] = tensors["model.norm.weight"];
  tensors.erase("model.norm.weight");
  write_safetensors(folder / "model.safetensors", tensors);
  EXPECT_THAT(refusal(folder.path()), HasSubstr("model.norm.weight"));
  nn::Parameters parameters = model({});
  ExternalNames external = names();
  external.old_endings = {{"norm.weight", "norm.gamma"}};
  import_weights(folder.path(), parameters, external);
  expect_sample_values(parameters);
}

TEST(HuggingFace, RefusesCopiesThatDiffer) {
  test::TemporaryFolder folder;
  ExternalNames external = names();
  external.ignored = {};
  const auto refusal_with = [&](const at::Tensor& head) -> std::string {
    std::map<std::string, at::Tensor> tensors = folder_tensors();
    tensors["lm_head.weight"] = head;
    write_safetensors(folder / "model.safetensors", tensors);
    nn::Parameters parameters = model({});
    for (nn::Parameter& p : parameters) p.value.detach().fill_(7);
    try {
      import_weights(folder.path(), parameters, external);
    } catch (const Error& error) {
      for (const nn::Parameter& p : parameters) EXPECT_TRUE(p.value.eq(7).all().item<bool>()) << p.name;
      return error.what();
    }
    expect_sample_values(parameters);
    return "";
  };
  const at::Tensor embedding = folder_tensors()["model.embed.weight"];
  EXPECT_THAT(refusal_with(embedding), HasSubstr("lm_head.weight")) << "is left over where no copies are";
  external.copies = {{"lm_head.weight", "model.embed.weight", "a key", "change the key"}};
  EXPECT_EQ(refusal_with(embedding), "");
  EXPECT_EQ(refusal_with(embedding.to(at::kDouble)), "");
  for (const at::Tensor& other : {embedding + 1, embedding.narrow(0, 0, 4)})
    EXPECT_THAT(refusal_with(other),
                ContainsRegex("lm_head.weight must equal model.embed.weight, because a key makes them one weight"));
  EXPECT_THAT(refusal_with((embedding + 1).to(at::kHalf)),
              ContainsRegex("got Half \\[.*\\] and Float \\[.*\\], which differ; change the key"));
}

TEST(HuggingFace, AcceptsACopyRoundedToAnotherDtype) {
  test::TemporaryFolder folder;
  ExternalNames external = names();
  external.copies = {{"lm_head.weight", "model.embed.weight", "", ""}};
  std::map<std::string, at::Tensor> tensors = folder_tensors();
  at::Tensor& embedding = tensors["model.embed.weight"];
  embedding = embedding / 3;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    tensors["lm_head.weight"] = embedding.to(dtype);
    ASSERT_FALSE(at::equal(tensors["lm_head.weight"].to(at::kFloat), embedding));
    write_safetensors(folder / "model.safetensors", tensors);
    nn::Parameters parameters = model({});
    EXPECT_NO_THROW(import_weights(folder.path(), parameters, external)) << dtype;
  }
}

TEST(HuggingFace, NamesTheRemedyForAFolderWithoutSafetensors) {
  test::TemporaryFolder folder;
  nn::Parameters parameters = model({});
  const auto refusal = [&] {
    return test::thrown_message([&] { import_weights(folder.path(), parameters, names()); });
  };
  EXPECT_THAT(refusal(), HasSubstr("has neither model.safetensors nor its index file; download it, or convert"));
  folder.write("pytorch_model-00001-of-00002.bin", "");  // without the index that lists it
  EXPECT_THAT(refusal(), HasSubstr("its pytorch_model*.bin is not read in their place; convert to "
                                   "safetensors, with the packages torch and "
                                   "safetensors: python3 -c 'import glob, torch; "));
  EXPECT_THAT(refusal(), HasSubstr("save_file({name: t.clone().contiguous() for name, t in tensors.items()}, \"" +
                                   folder / "model.safetensors\""));
}

TEST(HuggingFace, KeepsValuesThatAFolderMayLack) {
  test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors = folder_tensors();
  tensors.erase("model.norm.weight");
  write_safetensors(folder / "model.safetensors", tensors);
  nn::Parameters parameters = model({});
  ExternalNames external = names();
  external.may_lack = {"up.*"};
  EXPECT_THROW(import_weights(folder.path(), parameters, external), Error);
  external.may_lack = {"norm.*"};
  std::vector<NamedTensor> values;
  for (nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach(), p.spec, {}});
  const at::Tensor norm = parameters.at("norm.weight").value.detach().fill_(7);
  EXPECT_THAT(import_weights(folder.path(), parameters, values, external), testing::ElementsAre("norm.weight"));
  EXPECT_TRUE(norm.eq(7).all().item<bool>());
  norm.copy_(whole_value(parameters.at("norm.weight"), at::kFloat));
  expect_sample_values(parameters);
}

TEST(HuggingFace, PassesRowsOfMatrices) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", folder_tensors());
  for (const bool takes : {true, false}) {
    nn::Parameters parameters = model({});
    std::vector<NamedTensor> values;
    for (nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach().fill_(7), p.spec, {}});
    std::set<std::string> passed;
    import_weights(folder.path(), parameters, values, names(), {}, [&](const std::string& name, const ReadRows& read) {
      const auto rows = read();
      if (!rows) return false;
      passed.insert(name);
      EXPECT_TRUE(at::equal(at::cat(*rows), whole_value(parameters.at(name), at::kFloat))) << name;
      EXPECT_EQ(rows->size(), name == "qkv.weight" ? 3u : name == "fused.weight" ? rows->size() : 1u);
      return takes;
    });
    // the folder holds the transpose of the others, or they are vectors
    EXPECT_THAT(passed, testing::UnorderedElementsAre("embedding.weight", "qkv.weight", "fused.weight"));
    for (const std::string& name : passed)
      if (takes) parameters.at(name).value.detach().copy_(whole_value(parameters.at(name), at::kFloat));
    expect_sample_values(parameters);
  }
}

TEST(HuggingFace, PostponesReading) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", folder_tensors());
  nn::Parameters parameters = model({});
  std::vector<NamedTensor> values;
  for (nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach().fill_(7), p.spec, {}});
  std::map<std::string, std::function<void()>> loads;
  const auto take_later = [&](const std::string& name, const std::function<void()>& load) {
    if (name == "norm.weight") return false;
    return loads.emplace(name, load).second;
  };
  EXPECT_THAT(import_weights(folder.path(), parameters, values, names(), {}, {}, take_later), testing::IsEmpty());
  EXPECT_EQ(loads.size(), values.size() - 1);
  for (const nn::Parameter& p : parameters)
    EXPECT_EQ(p.value.eq(7).all().item<bool>(), p.name != "norm.weight") << p.name;
  std::filesystem::remove(folder / "model.safetensors");  // it stays open
  for (const auto& [name, load] : loads) load();
  expect_sample_values(parameters);
}

TEST(HuggingFace, FillsOneModelOfSeveral) {
  test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors = folder_tensors();
  tensors.erase("model.norm.weight");
  write_safetensors(folder / "model.safetensors", tensors);
  nn::Parameters parameters = model({});
  parameters.begin_model({.model = "critic"});
  declare(parameters);
  std::vector<NamedTensor> values;
  for (nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach().zero_(), p.spec, {}});
  ExternalNames external = names();
  external.may_lack = {"norm.*"};
  external.model = "critic";
  EXPECT_THAT(import_weights(folder.path(), parameters, values, external), testing::ElementsAre("critic.norm.weight"));
  for (const nn::Parameter& p : parameters) {
    const bool is_filled = p.model == "critic" && p.own_name() != "norm.weight";
    const at::Tensor want = is_filled ? local_part(whole_value(p, at::kFloat), p.spec, parameters.coordinates())
                                      : at::zeros(p.value.sizes());
    EXPECT_TRUE(same_bits(p.value.detach(), want)) << p.name;
  }
}

TEST(HuggingFace, KeepsValuesOfOtherShapesThatAFolderMayLack) {
  test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors = folder_tensors();
  tensors["model.norm.weight"] = at::ones({4});
  tensors["model.v.bias"] = at::ones({5});
  write_safetensors(folder / "model.safetensors", tensors);
  nn::Parameters parameters = model({});
  ExternalNames external = names();
  external.may_lack = {"norm.*"};
  EXPECT_THROW(import_weights(folder.path(), parameters, external), Error);
  external.may_lack = {"norm.*", "qkv.bias"};
  std::vector<NamedTensor> values;
  for (nn::Parameter& p : parameters) values.push_back({p.name, p.value.detach(), p.spec, {}});
  for (const char* name : {"norm.weight", "qkv.bias"}) parameters.at(name).value.detach().fill_(7);
  EXPECT_THAT(import_weights(folder.path(), parameters, values, external),
              UnorderedElementsAre("norm.weight", "qkv.bias"));
  for (const char* name : {"norm.weight", "qkv.bias"}) {
    nn::Parameter& kept = parameters.at(name);
    EXPECT_TRUE(kept.value.detach().eq(7).all().item<bool>()) << name;
    kept.value.detach().copy_(whole_value(kept, at::kFloat));
  }
  expect_sample_values(parameters);
}

TEST(HuggingFace, ImportsUnderEveryLayoutAndPrefix) {
  test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> with = folder_tensors(), without;
  for (const auto& [name, value] : with) without[name.substr(6)] = value;
  with["lm_head.weight"] = at::zeros({11, 6});
  without["layers.0.rotary.inv_freq"] = at::zeros({3});
  fs::create_directories(folder / "with");
  fs::create_directories(folder / "without");
  write_safetensors(folder / "with/model.safetensors", with);
  write_safetensors(folder / "without/model.safetensors", without);
  for (const char* name : {"with", "without"}) {
    for (const Layout& layout : layouts()) {
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        nn::Parameters parameters = model(layout.coordinates(rank));
        import_weights(folder / name, parameters, names());
        expect_sample_values(parameters);
      }
    }
  }
}

TEST(HuggingFace, ConvertsToTheDtypeOfTheModel) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", folder_tensors());
  for (at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {  // both represent the values exactly
    nn::Parameters parameters = model({}, dtype);
    import_weights(folder.path(), parameters, names());
    expect_sample_values(parameters);
  }
}

TEST(HuggingFace, ExportsFromEveryLayoutBitwise) {
  for (const Layout& layout : layouts()) {
    test::TemporaryFolder folder;
    on_layout(layout, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      nn::Parameters parameters = model(coordinates);
      for (nn::Parameter& p : parameters)
        p.value.detach().copy_(local_part(whole_value(p, at::kFloat), p.spec, coordinates));
      export_weights(folder.path(), parameters, names(), {{"model_type", "test"}}, world);
    });
    const SafetensorsReader reader(folder / "model.safetensors");
    const auto wanted = folder_tensors();
    EXPECT_EQ(reader.entries().size(), wanted.size());
    for (const auto& [name, value] : wanted) EXPECT_TRUE(same_bits(reader.tensor(name), value)) << name;
    EXPECT_EQ(reader.metadata().at("format"), "pt");
    EXPECT_EQ(read_config(folder.path())["model_type"], "test");
  }
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(HuggingFace, ExportsShardsWithAnIndexAndReplacesOldFiles) {
  test::TemporaryFolder folder;
  const auto export_with = [&](int64_t max_file_bytes) {
    on_layout({1, 2}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      nn::Parameters parameters = model(coordinates);
      for (nn::Parameter& p : parameters)
        p.value.detach().copy_(local_part(whole_value(p, at::kFloat), p.spec, coordinates));
      export_weights(folder.path(), parameters, names(), {{"model_type", "test"}}, world, max_file_bytes);
    });
  };
  export_with(700);
  EXPECT_THAT(files_of(folder.path()),
              UnorderedElementsAre("config.json", "model.safetensors.index.json", "model-00001-of-00004.safetensors",
                                   "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
                                   "model-00004-of-00004.safetensors"));
  nn::Parameters parameters = model({});
  import_weights(folder.path(), parameters, names());
  expect_sample_values(parameters);
  const auto index = nlohmann::json::parse(test::read_all(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * parameters.numel());
  EXPECT_EQ(index["weight_map"].size(), folder_tensors().size());

  export_with(1 << 20);
  EXPECT_THAT(files_of(folder.path()), UnorderedElementsAre("config.json", "model.safetensors"));
}

TEST(HuggingFace, ThrowsTheSameExportErrorOnEveryRank) {
  test::TemporaryFolder folder;
  const std::string in_the_way = folder.write("out", "a file");
  std::vector<std::string> messages(2);
  on_layout({1, 2}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    try {
      export_weights(in_the_way, model(coordinates), names(), {}, world);
    } catch (const Error& error) {
      messages[world.rank()] = error.what();
    }
  });
  EXPECT_THAT(messages[0], HasSubstr(in_the_way));
  EXPECT_EQ(messages[0], messages[1]);
}

TEST(HuggingFace, RefusesAnotherModelWithATable) {
  test::TemporaryFolder folder;
  auto tensors = folder_tensors();
  tensors.erase("model.k.weight");
  tensors["model.norm.weight"] = at::zeros({7});
  tensors["model.extra"] = at::zeros({2});
  tensors["model.q.bias"] = at::zeros({12}, at::kLong);
  write_safetensors(folder / "model.safetensors", tensors);
  const std::string message = refusal(folder.path());
  EXPECT_THAT(message, ContainsRegex("model.k.weight +\\[6, 6\\] +-"));
  EXPECT_THAT(message, ContainsRegex("model.norm.weight +\\[6\\] +Float \\[7\\]"));
  EXPECT_THAT(message, ContainsRegex("model.extra +- +Float \\[2\\]"));
  EXPECT_THAT(message, ContainsRegex("model.q.bias +\\[12\\] +Long \\[12\\]"));
}

TEST(HuggingFace, RefusesAHostileIndex) {
  test::TemporaryFolder folder;
  auto tensors = folder_tensors();
  fs::create_directories(folder / "in");
  write_safetensors(folder / "outside.safetensors", tensors);
  write_safetensors(folder / "in/a.safetensors", tensors);
  write_safetensors(folder / "in/b.safetensors", tensors);
  const auto with_index = [&](const std::string& text) {
    folder.write("in/model.safetensors.index.json", text);
    return refusal(folder / "in");
  };
  const auto mapped = [&](const std::string& file) {
    return with_index(nlohmann::json({{"weight_map", {{"model.norm.weight", file}}}}).dump());
  };
  EXPECT_EQ(mapped("a.safetensors"), "loaded");
  EXPECT_THAT(mapped("../outside.safetensors"), HasSubstr("file of this folder"));
  EXPECT_THAT(mapped(folder / "outside.safetensors"), HasSubstr("file of this folder"));
  EXPECT_THAT(mapped(".."), HasSubstr("file of this folder"));
  EXPECT_THAT(mapped(""), HasSubstr("file of this folder"));
  EXPECT_THAT(mapped("none.safetensors"), HasSubstr("none.safetensors"));
  EXPECT_THAT(with_index("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(with_index("[]"), HasSubstr("JSON object"));
  EXPECT_THAT(with_index("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(with_index(R"({"weight_map": {"x": 3}})"), HasSubstr("file of this folder"));
  EXPECT_THAT(with_index(R"({"weight_map": {"x": "a.safetensors"}})"), HasSubstr("does not hold x"));
  EXPECT_THAT(
      with_index(R"({"weight_map": {"model.up.weight": "a.safetensors", "model.norm.weight": "b.safetensors"}})"),
      HasSubstr("in another file too"));
  EXPECT_THAT(refusal(folder / "nowhere"), HasSubstr("has neither"));
  EXPECT_THROW(read_config(folder / "in"), Error);
}

TEST(HuggingFace, RefusesNamesThatDoNotFitTheModel) {
  const auto with = [](const std::function<void(std::vector<nn::ExternalName>&)>& edit) {
    ExternalNames external = names();
    edit(external.names);
    nn::Parameters parameters = model({});
    import_weights("/nonexistent", parameters, external);
  };
  EXPECT_THROW(with([](auto& n) { n.pop_back(); }), Error);
  EXPECT_THROW(with([](auto& n) { n.push_back(n[0]); }), Error);
  EXPECT_THROW(with([](auto& n) { n[1].parts.pop_back(); }), Error);
  const auto refused = [&](const std::function<void(std::vector<nn::ExternalName>&)>& edit) -> std::string {
    return test::thrown_message([&] { with(edit); });
  };
  constexpr int kFused = 6, kGate = 8;
  EXPECT_THAT(refused([](auto& n) { n[kFused].parts.pop_back(); }), HasSubstr("has 24 rows, but its parts have 21"));
  EXPECT_THAT(refused([](auto& n) { n[kFused].parts.back() = "whole"; }),
              HasSubstr("whole tensors or to rows of tensors"));
  EXPECT_THAT(refused([](auto& n) { n[kFused].parts.back().count = 4; }), HasSubstr("fused.weight has 24 rows"));
  EXPECT_THAT(refused([](auto& n) { n[kFused].parts.back().first = 22; }), HasSubstr("got row 24, of fused.weight"));
  EXPECT_THAT(refused([](auto& n) { n[kFused].parts.back().first = 20; }), HasSubstr("got row 20 twice"));
  EXPECT_THAT(refused([](auto& n) { n[kFused].parts.back().stride = 0; }), HasSubstr("stride 0"));
  EXPECT_THAT(refused([](auto& n) { n[kFused].parts.back().first = -1; }), HasSubstr("first -1"));
  EXPECT_THAT(refused([](auto& n) { n[kGate].transposed = false; }),
              HasSubstr("must have one shape in all parameters"));
}

}  // namespace
}  // namespace colossal::checkpoint::hugging_face_test
