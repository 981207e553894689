// The keys of ESMFold, and what follows from them.
//
//   const auto own = shape.own.as<models::EsmfoldSizes>();
//   const int64_t mask = own.id_of("<mask>");
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/folding/structure_module.h"

namespace colossal::models {

/// Returns the tokens of ESM-2, in the order of their ids.
std::vector<std::string> esm2_tokens();

struct EsmfoldSizes {
  int64_t language_layers = 0;                        ///< layers of ESM-2
  std::vector<std::string> tokens = esm2_tokens();    ///< of ESM-2, in the order of their ids
  bool token_dropout = true;                          ///< Esm2Masking::token_dropout
  double rope_theta = 10000;                          ///< base of ESM-2's rotary positions
  bool embeds_types = true;                           ///< the trunk also reads a table of the types of residues
  int64_t single = 1024, pair = 128;                  ///< features of a residue and of a pair in the trunk
  int64_t single_width = 32, pair_width = 32;         ///< features of a head of the trunk
  int64_t position_bins = 32;                         ///< distances in the chain from which on all are the same
  int64_t structure = 384, structure_pair = 128;      ///< features of a residue and of a pair in the structure module
  int64_t point_heads = 12, point_width = 16;         ///< heads of point attention, and their features
  int64_t query_points = 4, value_points = 8;         ///< points of a head
  int64_t structure_layers = 8, transitions = 1;      ///< StructureSizes
  int64_t angle_hidden = 128, angle_blocks = 2;       ///< StructureSizes
  double structure_dropout = .1, unit_angstrom = 10;  ///< StructureSizes
  int64_t lddt_hidden = 128;                          ///< features inside the head of LDDT
  int64_t passes = 4;                                 ///< default of how often the model runs on a chain
  void fields(Fields& f);
  bool operator==(const EsmfoldSizes&) const = default;

  StructureSizes structure_sizes() const;
  /// Returns the id of a token. Errors ("model"): no such token.
  int64_t id_of(const std::string& token) const;
  /// Returns the ids of padding, of the 20 types of residues and of X (protein/residues.h).
  std::vector<int64_t> ids_of_types() const;
};

}  // namespace colossal::models
