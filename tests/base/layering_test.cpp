// Checks of the structure of the sources: includes between layers, layers that may include LibTorch, and what only some
// layers may name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/sources.h"
#include "colossal/base/file.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::layering_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const fs::path kSourceDir = test::source_dir();

struct Layer {
  bool torch_free = false;
  std::set<std::string> may_include;
};

std::map<std::string, Layer> read_layers(const fs::path& file, std::vector<std::string>& faults) {
  std::map<std::string, Layer> layers;
  std::ifstream rows(file);
  const std::regex pattern(R"(([a-z_]+)(\*?) *:(.*))");
  for (std::string row; std::getline(rows, row);) {
    std::smatch parts;
    if (row.empty() || row[0] == '#' || !std::regex_match(row, parts, pattern)) continue;
    Layer layer{parts[2].length() > 0, {}};
    std::istringstream names(parts[3].str());
    for (std::string name; names >> name; layer.may_include.insert(name)) {
      if (!layers.count(name))
        faults.push_back("LAYERS: " + parts[1].str() + " names " + name + ", which is not above it");
    }
    layers[parts[1]] = layer;
  }
  return layers;
}

std::vector<std::string> includes_of(const fs::path& file) {
  static const std::regex pattern(R"rx(^\s*#\s*include\s*[<"]([^>"]+)[>"])rx");
  std::vector<std::string> names;
  std::ifstream lines(file);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, pattern)) names.push_back(match[1]);
  }
  return names;
}

bool names_torch(const std::string& include) {
  return include.rfind("torch/", 0) == 0 || include.rfind("ATen/", 0) == 0 || include.rfind("c10/", 0) == 0;
}

/// Returns the headers of single architectures.
std::set<std::string> architectures_of(const fs::path& source) {
  std::set<std::string> headers;
  for (const auto& file : sources_below(source / "colossal/models/families"))
    if (file.extension() == ".h") headers.insert(fs::relative(file, source).string());
  return headers;
}

/// Returns one line for each violation of LAYERS below `source`, the folder that contains colossal/. A row that allows
/// more than its layer uses is a violation, too.
std::vector<std::string> violations(const fs::path& source) {
  std::vector<std::string> faults;
  const auto layers = read_layers(source / "colossal/LAYERS", faults);
  auto unused = layers;
  const auto architectures = architectures_of(source);
  for (const auto& file : sources_below(source / "colossal")) {
    const std::string name = fs::relative(file, source / "colossal").string();
    const std::string layer_name = name.substr(0, name.find('/'));
    const auto layer = layers.find(layer_name);
    if (layer == layers.end()) {
      faults.push_back(name + " is in no layer");
      continue;
    }
    for (const auto& include : includes_of(file)) {
      if (layer->second.torch_free && names_torch(include))
        faults.push_back(name + " may not include torch: " + include);
      if (include.rfind("colossal/", 0) != 0) continue;
      const std::string rest = include.substr(9), other = rest.substr(0, rest.find('/'));
      unused.at(layer_name).may_include.erase(other);
      if (other != layer_name && !layer->second.may_include.count(other))
        faults.push_back(name + " may not include " + include);
      if (!fs::exists(source / include)) faults.push_back(name + " includes what is not there: " + include);
      // t5_folder.cpp is a part of t5.cpp
      const bool own = file.stem().string().starts_with(fs::path(include).stem().string());
      if (architectures.count(include) && layer_name == "models" && !own)
        faults.push_back(name + " includes a sibling: " + include);
    }
  }
  for (const auto& [name, layer] : unused) {
    for (const std::string& other : layer.may_include)
      faults.push_back("LAYERS: " + name + " allows " + other + ", which no file of it includes");
  }
  return faults;
}

/// Returns the headers that PUBLIC lists, in the form of an include.
std::set<std::string> public_headers(const fs::path& source) {
  std::set<std::string> headers;
  std::ifstream rows(source / "colossal/PUBLIC");
  for (std::string row; std::getline(rows, row);) {
    if (row.empty() || row[0] == '#') continue;
    std::istringstream words(row);
    std::string layer;
    std::getline(words, layer, ':');
    layer.erase(layer.find_last_not_of(' ') + 1);
    for (std::string name; words >> name;) headers.insert("colossal/" + layer + "/" + name + ".h");
  }
  return headers;
}

/// Returns one line for each error in the set of installed headers.
std::vector<std::string> front_door_faults(const fs::path& source) {
  std::vector<std::string> faults;
  const std::set<std::string> headers = public_headers(source);
  std::set<std::string> reached;
  std::vector<std::string> to_see{"colossal.h"};
  while (!to_see.empty()) {
    const std::string header = to_see.back();
    to_see.pop_back();
    for (const std::string& include : includes_of(source / header)) {
      if (include.rfind("colossal/", 0) != 0) continue;
      if (!headers.count(include))
        faults.push_back(header + " is public and includes " + include + ", which is not");
      else if (reached.insert(include).second)
        to_see.push_back(include);
    }
  }
  for (const std::string& header : headers) {
    if (!fs::exists(source / header))
      faults.push_back("PUBLIC lists what is not there: " + header);
    else if (!reached.count(header))
      faults.push_back(header + " is public, but colossal.h does not reach it");
  }
  return faults;
}

/// Returns the files that include headers of a folder, such as "boost/".
std::vector<std::string> files_with(const fs::path& source, const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& file : sources_below(source)) {
    const auto includes = includes_of(file);
    const auto is_below = [&](const std::string& include) { return include.starts_with(folder); };
    if (std::any_of(includes.begin(), includes.end(), is_below)) files.push_back(fs::relative(file, source).string());
  }
  return files;
}

/// Returns the lines outside base/json_file that call the JSON library's own parser, which has no limit of depth.
std::vector<std::string> direct_json_parsers(const fs::path& source) {
  static const std::regex parses(R"rx(\b(ordered_|basic_)?json\s*::\s*(parse|sax_parse|accept)\b)rx");
  static const std::regex reads(R"rx(>>\s*\w*json\b)rx");
  std::vector<std::string> faults;
  for (const auto& file : sources_below(source)) {
    const std::string name = fs::relative(file, source).string();
    if (name.ends_with("base/json_file.cpp")) continue;
    std::ifstream lines(file);
    int number = 1;
    for (std::string line; std::getline(lines, line); ++number) {
      const std::string code = line.substr(0, line.find("//"));
      if (std::regex_search(code, parses) || std::regex_search(code, reads))
        faults.push_back(name + ":" + std::to_string(number) + " parses JSON itself; call parse_json()");
    }
  }
  return faults;
}

/// Returns the lines that look up a field of a batch by a literal name, in layers that split, copy or run any batch.
std::vector<std::string> literal_field_names(const fs::path& source) {
  static const std::regex looks_up(R"rx((\.|->)(at|find|field|add)\(\s*")rx");
  static const std::regex is_name(R"rx("(ids|images|labels|positions)")rx");
  std::vector<std::string> faults;
  for (const char* layer : {"train", "parallel", "distributed", "memory"}) {
    for (const auto& file : sources_below(source / "colossal" / layer)) {
      std::ifstream lines(file);
      int number = 1;
      for (std::string line; std::getline(lines, line); ++number) {
        const std::string code = line.substr(0, line.find("//"));
        const bool asks_a_batch = std::regex_search(code, looks_up) && code.find("atch") != std::string::npos;
        if (asks_a_batch || std::regex_search(code, is_name))
          faults.push_back(fs::relative(file, source / "colossal").string() + ":" + std::to_string(number) +
                           " names a field of a batch; read its dims, or let the model or the loss read it");
      }
    }
  }
  return faults;
}

/// Returns the lines outside models and run/objectives that name an objective. Such code must query models::Task
/// instead.
std::vector<std::string> named_objectives(const fs::path& source) {
  static const std::regex names(
      R"rx("(next-token|masked-token|span-corruption)"|\b(NextToken|MaskedToken|SpanCorruption)\b)rx"
      R"rx(|objective\W*[!=]=\W*"|"objective=)rx");
  std::vector<std::string> faults;
  for (const auto& file : sources_below(source / "colossal")) {
    const std::string name = fs::relative(file, source / "colossal").string();
    if (name.starts_with("models/") || name.starts_with("run/objectives/")) continue;
    std::ifstream lines(file);
    int number = 1;
    for (std::string line; std::getline(lines, line); ++number)
      if (std::regex_search(line.substr(0, line.find("//")), names))
        faults.push_back(name + ":" + std::to_string(number) +
                         " names an objective; ask models::Task what the model reads and writes");
  }
  return faults;
}

TEST(Layering, NamesObjectivesOnlyInModelsAndObjectives) {
  EXPECT_THAT(named_objectives(kSourceDir / "src"), IsEmpty());
}

TEST(Layering, ParsesJsonInOnePlace) { EXPECT_THAT(direct_json_parsers(kSourceDir / "src"), IsEmpty()); }

// Each takes seconds to compile, and is a unit of its own (cmake/ColossalLayers.cmake).
TEST(Layering, IncludesBoostInThreeFiles) {
  EXPECT_THAT(files_with(kSourceDir / "src/colossal", "boost/"),
              UnorderedElementsAre("http/client.cpp", "http/request_input.cpp", "http/sockets.cpp"));
}

TEST(Layering, IncludesGemmiInTwoFiles) {
  EXPECT_THAT(files_with(kSourceDir / "src/colossal", "gemmi/"),
              UnorderedElementsAre("protein/gemmi_mmcif.cpp", "protein/gemmi_pdb.cpp"));
}

TEST(Layering, NamesFieldsOnlyInModelsAndSamples) { EXPECT_THAT(literal_field_names(kSourceDir / "src"), IsEmpty()); }

TEST(Layering, HoldsForTheSources) { EXPECT_THAT(violations(kSourceDir / "src"), IsEmpty()); }

TEST(Layering, CoversEveryFolderOfTheSources) {
  std::vector<std::string> faults;
  const auto layers = read_layers(kSourceDir / "src/colossal/LAYERS", faults);
  ASSERT_GE(layers.size(), 13u);
  EXPECT_TRUE(layers.at("base").torch_free);
  EXPECT_GE(architectures_of(kSourceDir / "src").size(), 2u) << "the sibling rule has nothing to look at";
}

TEST(Layering, IncludesOnlyPublicHeadersInPublicOnes) {
  EXPECT_THAT(front_door_faults(kSourceDir / "src"), IsEmpty());
  EXPECT_TRUE(public_headers(kSourceDir / "src").count("colossal/train/module_training.h"));
}

/// A small tree of sources in which tests plant violations.
class PlantedViolations : public ::testing::Test {
 protected:
  void SetUp() override {
    plant("LAYERS", "# comment\nbase*  :\ntensor : base\nmodels : tensor\n");
    plant("base/good.h", "#include <vector>\n#include \"colossal/base/other.h\"\n");
    plant("base/other.h", "");
    plant("models/registry.h", "#include \"colossal/models/model.h\"\n");
    plant("models/model.h", "#include \"colossal/tensor/mesh_coordinates.h\"\n");
    plant("models/built_in.cpp", "#include \"colossal/models/registry.h\"\n");
    plant("models/families/gpt2.h", "#include \"colossal/models/model.h\"\n");
    plant("models/families/gpt2.cpp", "#include \"colossal/models/families/gpt2.h\"\n");
    plant("models/families/llama.h", "");
    plant("tensor/mesh_coordinates.h", "#include <ATen/core/Tensor.h>\n#include \"colossal/base/good.h\"\n");
  }
  void plant(const std::string& name, const std::string& text) {
    const fs::path file = fs::path(folder_.path()) / "src/colossal" / name;
    fs::create_directories(file.parent_path());
    write_file(file.string(), text);
  }
  std::vector<std::string> found() const { return violations(fs::path(folder_.path()) / "src"); }
  test::TemporaryFolder folder_;
};

TEST_F(PlantedViolations, FindsNoneInACleanTree) { EXPECT_THAT(found(), IsEmpty()); }

TEST_F(PlantedViolations, FindsAnIncludeOfAHigherLayer) {
  plant("tensor/up.cpp", "  #  include \"colossal/models/model.h\"\n");
  EXPECT_THAT(found(), ElementsAre("tensor/up.cpp may not include colossal/models/model.h"));
}

TEST_F(PlantedViolations, FindsTorchInATorchFreeLayer) {
  plant("base/deep/a.h", "#include <ATen/ATen.h>\n");
  plant("base/deep/b.cpp", "#include <c10/util/Exception.h>\n");
  plant("base/deep/c.cpp", "#include \"torch/torch.h\"\n");
  EXPECT_THAT(found(), ElementsAre(HasSubstr("ATen/ATen.h"), HasSubstr("c10/util"), HasSubstr("torch/torch.h")));
}

TEST_F(PlantedViolations, FindsASiblingOfAModel) {
  plant("models/families/llama.cpp",
        "#include \"colossal/models/families/llama.h\"\n#include \"colossal/models/families/gpt2.h\"\n");
  EXPECT_THAT(found(), ElementsAre("models/families/llama.cpp includes a sibling: colossal/models/families/gpt2.h"));
}

TEST_F(PlantedViolations, FindsAnIncludeOfAMissingFile) {
  plant("base/lost.cpp", "#include \"colossal/base/gone.h\"\n");
  EXPECT_THAT(found(), ElementsAre(HasSubstr("not there: colossal/base/gone.h")));
}

TEST_F(PlantedViolations, FindsAFolderOutsideTheTable) {
  plant("utils/x.h", "");
  EXPECT_THAT(found(), ElementsAre("utils/x.h is in no layer"));
}

TEST_F(PlantedViolations, FindsARowThatAllowsALaterLayer) {
  plant("LAYERS", "base* : tensor\ntensor : base\nmodels : tensor\n");
  plant("base/down.h", "#include \"colossal/tensor/mesh_coordinates.h\"\n");
  EXPECT_THAT(found(), ElementsAre("LAYERS: base names tensor, which is not above it"));
}

TEST_F(PlantedViolations, FindsARowThatAllowsMoreThanIsUsed) {
  plant("LAYERS", "base*  :\ntensor : base\nmodels : base tensor\n");
  EXPECT_THAT(found(), ElementsAre("LAYERS: models allows base, which no file of it includes"));
}

TEST_F(PlantedViolations, FindsAPublicHeaderThatIncludesAPrivateOne) {
  plant("../colossal.h", "#include \"colossal/base/good.h\"\n");
  plant("PUBLIC", "# comment\nbase : good other\n");
  const auto faults = [&] { return front_door_faults(fs::path(folder_.path()) / "src"); };
  EXPECT_THAT(faults(), IsEmpty());
  plant("PUBLIC", "base : good\n");
  EXPECT_THAT(faults(), ElementsAre("colossal/base/good.h is public and includes colossal/base/other.h, which is not"));
  plant("PUBLIC", "base : gone good other\ntensor : mesh_coordinates\n");
  EXPECT_THAT(faults(), ElementsAre("PUBLIC lists what is not there: colossal/base/gone.h",
                                    "colossal/tensor/mesh_coordinates.h is public, but colossal.h does not reach it"));
}

TEST_F(PlantedViolations, FindsADirectJsonParser) {
  plant("base/json_file.cpp", "return json::parse(text);\n");
  plant("base/reads.cpp", "// json::parse()\nauto a = nlohmann::ordered_json::parse(text);\njson::sax_parse(t, &g);\n");
  EXPECT_THAT(direct_json_parsers(fs::path(folder_.path()) / "src"),
              ElementsAre("colossal/base/reads.cpp:2 parses JSON itself; call parse_json()",
                          "colossal/base/reads.cpp:3 parses JSON itself; call parse_json()"));
}

TEST_F(PlantedViolations, FindsAFieldNamedInALayerForAllBatches) {
  plant("train/engine.cpp", "const auto& x = micro_batch.at(\"weights\");\n");
  plant("memory/offload_store.cpp", "const char* kName = \"labels\";\n");
  plant("parallel/layout.cpp", "// batch.at(\"ids\")\nmesh.group(\"data\");\n");
  EXPECT_THAT(literal_field_names(fs::path(folder_.path()) / "src"),
              ElementsAre(HasSubstr("train/engine.cpp:1 names a field"),
                          HasSubstr("memory/offload_store.cpp:1 names a field")));
}

TEST_F(PlantedViolations, FindsAnObjectiveNamedElsewhere) {
  plant("infer/engine.cpp", "if (task.objective == \"class\") return;\nauto* x = dynamic_cast<NextToken*>(y);\n");
  plant("train/engine.cpp", "// \"next-token\"\nconst char* kName = \"masked-token\";\n");
  plant("models/x.cpp", "return {.objective = \"next-token\"};\n");
  plant("run/objectives/x.cpp", "class NextToken {};\n");
  EXPECT_THAT(named_objectives(fs::path(folder_.path()) / "src"),
              UnorderedElementsAre(HasSubstr("infer/engine.cpp:1 names an objective"),
                                   HasSubstr("infer/engine.cpp:2 names an objective"),
                                   HasSubstr("train/engine.cpp:2 names an objective")));
}

}  // namespace
}  // namespace colossal::layering_test
