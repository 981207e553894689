// A small model that folds proteins, for tests of what does not depend on the model: it reads sequences alone, has one
// triangle layer per block and a structure module, and recycles.
//
//   run::Program program = run::built_in();
//   program.models.add(test::small_folding());
//   const models::ModelShape shape = test::small_folding_shape(program.models);
//   test::write_small_folding(folder, shape);                                // a folder that load_model() reads
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"
#include "colossal/models/registry.h"

namespace colossal::test {

/// Keys of [model] of the architecture "small-folding".
struct SmallFoldingKeys {
  int64_t single = 8, pair = 6;
  int64_t points = 37;            ///< LDDT values of a residue: 1 or 37
  bool predicts_errors = true;    ///< it has a head of errors of aligned points
  bool reads_alignments = false;  ///< it reads the fields msa_feat and msa_mask, and does not fold complexes
  void fields(Fields& f);
  bool operator==(const SmallFoldingKeys&) const = default;
};

/// Returns the architecture. Its folders have the model_type "small-folding", the names of its parameters and the keys
/// of SmallFoldingKeys and `layers`.
models::Architecture small_folding();

/// Returns a shape of the architecture, which the registry must have.
models::ModelShape small_folding_shape(const models::Registry& registry, const SmallFoldingKeys& keys = {},
                                       int64_t layers = 2);

/// Writes a folder of the model with random weights of that seed, in fp32.
void write_small_folding(const std::string& folder, const models::ModelShape& shape, uint64_t seed = 1);

}  // namespace colossal::test
