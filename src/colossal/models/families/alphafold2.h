// AlphaFold 2 (Jumper et al. 2021, doi:10.1038/s41586-021-03819-2): from a chain, its alignment and templates to a
// structure. Its own keys, and its published weights.
//
//   const ModelShape shape = built_in().resolve({.name = "alphafold2-ptm"});
//   const FoldedAtoms atoms = folded_atoms(*model.folding, end, batch.at("aatype"));
//
// It is a folding model (models/folding/folding_model.h). Blocks are, in this order: those of templates, of further
// rows of the alignment, ModelShape::layers blocks of the Evoformer, and the structure module. States: z, m with rows
// of templates behind its own, the further rows, pairs of templates, and what the structure module makes.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"

namespace colossal::models {

/// The sizes of AlphaFold 2. The defaults are those of its published models 1 and 2.
struct AlphaFold2Sizes {
  int64_t templates = 4;             ///< most templates; 0 = the model reads none (published models 3, 4 and 5)
  bool pae = false;                  ///< whether it predicts errors of aligned points (published models _ptm)
  int64_t alignment_features = 256;  ///< of m (c_m)
  int64_t pair_features = 128;       ///< of z (c_z)
  int64_t extra_features = 64;       ///< of further rows (c_e)
  int64_t template_features = 64;    ///< of pairs of templates (c_t)
  int64_t structure_features = 384;  ///< of a residue in the structure module (c_s)
  int64_t extra_blocks = 4, template_blocks = 2, structure_layers = 8;
  int64_t alignment_heads = 8, alignment_width = 32;  ///< heads of the attention of m, and features of a head
  int64_t pair_heads = 4, pair_width = 32;            ///< of z
  int64_t extra_heads = 8, extra_width = 8;           ///< of further rows
  int64_t template_heads = 4, template_width = 16;    ///< of pairs of templates
  int64_t lookup_heads = 4, lookup_width = 16;        ///< of the attention of z to templates
  int64_t outer = 32, triangle = 128, template_triangle = 64;
  int64_t transition = 4, template_transition = 2;
  int64_t point_heads = 12, point_width = 16, query_points = 4, value_points = 8;
  int64_t angle_features = 128, confidence_features = 128;
  int64_t max_offset = 32;
  double alignment_dropout = 0.15, pair_dropout = 0.25, structure_dropout = 0.1;
  void fields(Fields& f);
  bool operator==(const AlphaFold2Sizes&) const = default;
};

/// Returns the folder of `colossal export`: config.json with the keys of AlphaFold2Sizes, and safetensors under the
/// names of OpenFold. Files of OpenFold and of AlphaFold have the same form (checkpoint/folding/weights.h).
HuggingFace alphafold2_folder();

}  // namespace colossal::models
