#include "colossal/models/folding/esmfold_sizes.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/protein/residues.h"

namespace colossal::models {

std::vector<std::string> esm2_tokens() {
  std::vector<std::string> tokens{"<cls>", "<pad>", "<eos>", "<unk>"};
  for (const char letter : std::string("LAGVSERTIDPKQNFYMHWCXBUZO.-")) tokens.emplace_back(1, letter);
  tokens.insert(tokens.end(), {"<null_1>", "<mask>"});
  return tokens;
}

void EsmfoldSizes::fields(Fields& f) {
  constexpr int64_t kMost = 1 << 16;
  const auto size = [&](const char* name, int64_t& value, const char* unit, const char* help) {
    f.integer(name, value, unit, help, 1, kMost);
  };
  f.integer("language_layers", language_layers, "layers", "layers of the language model ESM-2", 1, kMost);
  f.texts("tokens", tokens, "tokens of ESM-2, in the order of their ids");
  f.flag("token_dropout", token_dropout, "ESM-2 scales embeddings by the share of masked tokens");
  f.number("rope_theta", rope_theta, "", "base of the rotary positions of ESM-2", 1);
  f.flag("embeds_types", embeds_types, "the trunk also reads a table of the types of residues");
  size("single", single, "features", "features of a residue in the trunk");
  size("pair", pair, "features", "features of a pair in the trunk");
  size("single_width", single_width, "features", "features of an attention head of residues");
  size("pair_width", pair_width, "features", "features of an attention head of pairs");
  size("position_bins", position_bins, "residues", "distance in the chain from which on all count the same");
  size("structure", structure, "features", "features of a residue in the structure module");
  size("structure_pair", structure_pair, "features", "features of a pair in the structure module");
  size("point_heads", point_heads, "heads", "heads of point attention");
  size("point_width", point_width, "features", "features of a head of point attention");
  size("query_points", query_points, "points", "points of a query");
  size("value_points", value_points, "points", "points of a value");
  size("structure_layers", structure_layers, "layers", "how often the structure module is applied");
  size("transitions", transitions, "transitions", "transitions of a layer of the structure module");
  size("angle_hidden", angle_hidden, "features", "features of the network of angles");
  size("angle_blocks", angle_blocks, "blocks", "residual blocks of the network of angles");
  f.number("structure_dropout", structure_dropout, "", "dropout of the structure module", 0, 1);
  f.number("unit_angstrom", unit_angstrom, "Angstrom", "unit of translations in the structure module", 0);
  size("lddt_hidden", lddt_hidden, "features", "features inside the head of LDDT");
  size("passes", passes, "passes", "how often the model runs on a chain");
}

StructureSizes EsmfoldSizes::structure_sizes() const {
  return {.points = {.single = structure,
                     .pair = structure_pair,
                     .heads = point_heads,
                     .head_dim = point_width,
                     .query_points = query_points,
                     .value_points = value_points},
          .layers = structure_layers,
          .transitions = transitions,
          .angle_hidden = angle_hidden,
          .angle_blocks = angle_blocks,
          .dropout = structure_dropout,
          .angstrom = unit_angstrom};
}

int64_t EsmfoldSizes::id_of(const std::string& token) const {
  const auto found = std::find(tokens.begin(), tokens.end(), token);
  require(found != tokens.end(), "model", "the tokens of ESM-2 must include ", token, ": got ", tokens.size(),
          " without it");
  return found - tokens.begin();
}

std::vector<int64_t> EsmfoldSizes::ids_of_types() const {
  std::vector<int64_t> ids{id_of("<pad>")};
  for (int type = 0; type <= protein::kUnknownType; ++type)
    ids.push_back(id_of(std::string(1, protein::letter_of_type(type))));
  return ids;
}

}  // namespace colossal::models
