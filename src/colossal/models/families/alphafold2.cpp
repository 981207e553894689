#include "colossal/models/families/alphafold2.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/evoformer_block.h"
#include "colossal/models/folding/alignment_embedding.h"
#include "colossal/models/folding/alphafold_heads.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/models/folding/kept_inputs.h"
#include "colossal/models/folding/structure_module.h"
#include "colossal/models/folding/template_layers.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/task.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/features.h"
#include "colossal/nn/open_gate.h"

namespace colossal::models {

void AlphaFold2Sizes::fields(Fields& f) {
  const auto size = [&](const char* name, int64_t& value, const char* help) {
    f.integer(name, value, "", help, 1, 1 << 20);
  };
  f.integer("templates", templates, "templates", "most templates that are read; 0 = the model has no layers for them",
            0, 1 << 10);
  f.flag("pae", pae, "the model has a head for the errors of aligned residues, and so a pTM");
  size("alignment_features", alignment_features, "features of the alignment (c_m)");
  size("pair_features", pair_features, "features of pairs of residues (c_z)");
  size("extra_features", extra_features, "features of the extra alignment (c_e)");
  size("template_features", template_features, "features of pairs of residues of templates (c_t)");
  size("structure_features", structure_features, "features of residues in the structure module (c_s)");
  size("extra_blocks", extra_blocks, "blocks of the extra alignment");
  size("template_blocks", template_blocks, "blocks of templates");
  size("structure_layers", structure_layers, "layers of the structure module, which share weights");
  size("alignment_heads", alignment_heads, "heads of the attention of the alignment");
  size("alignment_width", alignment_width, "features of such a head");
  size("pair_heads", pair_heads, "heads of triangle attention");
  size("pair_width", pair_width, "features of such a head");
  size("extra_heads", extra_heads, "heads of the attention of the extra alignment");
  size("extra_width", extra_width, "features of such a head");
  size("template_heads", template_heads, "heads of triangle attention of templates");
  size("template_width", template_width, "features of such a head");
  size("lookup_heads", lookup_heads, "heads of the attention of pairs to templates");
  size("lookup_width", lookup_width, "features of such a head");
  size("outer", outer, "features of each side of the outer product");
  size("triangle", triangle, "features of triangle multiplication");
  size("template_triangle", template_triangle, "features of triangle multiplication of templates");
  size("transition", transition, "factor of the features inside transitions");
  size("template_transition", template_transition, "factor of the features inside transitions of templates");
  size("point_heads", point_heads, "heads of point attention");
  size("point_width", point_width, "features of such a head");
  size("query_points", query_points, "points of its query and key");
  size("value_points", value_points, "points of its value");
  size("angle_features", angle_features, "features inside the network of angles");
  size("confidence_features", confidence_features, "features inside the head of LDDT");
  size("max_offset", max_offset, "largest offset of residues with an embedding of its own");
  f.number("alignment_dropout", alignment_dropout, "", "dropout of the alignment", 0, 1);
  f.number("pair_dropout", pair_dropout, "", "dropout of pairs", 0, 1);
  f.number("structure_dropout", structure_dropout, "", "dropout of the structure module", 0, 1);
}

namespace alphafold2 {  // a namespace of its own, because every family has functions of these names

/// Indices of the states. Those of the structure module exist after it alone.
enum StateIndex : int { kPair, kAlignment, kExtra, kTemplates, kUnfolded, kStructure, kFrames, kAngles };

Task task(const ModelShape&) { return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "folding"}; }

int64_t template_blocks(const AlphaFold2Sizes& own) { return own.templates > 0 ? own.template_blocks : 0; }

void settle(ModelShape& s) {
  const auto own = s.own.as<AlphaFold2Sizes>();
  require(s.dropout == 0, "model", "dropout of AlphaFold 2 must be set by its own keys: got ", s.dropout,
          "; set model.alignment_dropout, pair_dropout or structure_dropout");
  for (const auto& [name, dropout] : {std::pair{"alignment_dropout", own.alignment_dropout},
                                      {"pair_dropout", own.pair_dropout},
                                      {"structure_dropout", own.structure_dropout}})
    require(dropout < 1, "model", name, " must be below 1: got ", dropout, "; 0 = off");
  s.tied = false;
  s.set(FurtherBlocks{.before = template_blocks(own) + own.extra_blocks, .after = 1});
  s.set(FoldingSizes{.single = own.alignment_features,
                     .pair = own.pair_features,
                     .structure = own.structure_features,
                     .structure_layers = own.structure_layers,
                     .reads_alignments = true,
                     .templates = own.templates});
}

EvoformerSizes evoformer_sizes(const AlphaFold2Sizes& own) {
  return {.alignment = own.alignment_features,
          .pair = own.pair_features,
          .rows = {.heads = own.alignment_heads, .width = own.alignment_width},
          .edges = {.heads = own.pair_heads, .width = own.pair_width},
          .outer = own.outer,
          .triangle = own.triangle,
          .transition = own.transition,
          .alignment_dropout = own.alignment_dropout,
          .pair_dropout = own.pair_dropout};
}

EvoformerSizes extra_sizes(const AlphaFold2Sizes& own) {
  EvoformerSizes sizes = evoformer_sizes(own);
  sizes.alignment = own.extra_features;
  sizes.rows = {.heads = own.extra_heads, .width = own.extra_width};
  sizes.global = true;
  return sizes;
}

TemplateSizes template_sizes(const AlphaFold2Sizes& own) {
  return {.alignment = own.alignment_features,
          .pair = own.pair_features,
          .features = own.template_features,
          .templates = own.templates,
          .edges = {.heads = own.template_heads, .width = own.template_width},
          .points = {.heads = own.lookup_heads, .width = own.lookup_width},
          .triangle = own.template_triangle,
          .transition = own.template_transition,
          .dropout = own.pair_dropout};
}

StructureSizes structure_sizes(const AlphaFold2Sizes& own) {
  return {.points = {.single = own.structure_features,
                     .pair = own.pair_features,
                     .heads = own.point_heads,
                     .head_dim = own.point_width,
                     .query_points = own.query_points,
                     .value_points = own.value_points},
          .layers = own.structure_layers,
          .angle_hidden = own.angle_features,
          .dropout = own.structure_dropout};
}

at::Tensor pair_mask(const tensor::Batch& batch) {
  const at::Tensor& mask = batch.at("seq_mask");
  return mask.unsqueeze(2) * mask.unsqueeze(1);
}

/// Returns the mask of m, with the rows of templates.
at::Tensor rows_mask(const tensor::Batch& batch, bool with_templates) {
  const at::Tensor& mask = batch.at("msa_mask");
  if (!with_templates) return mask;
  return at::cat({mask, template_rows_mask(batch).to(mask.scalar_type())}, 1);
}

/// Refuses layouts in which a rank does not have all features and rows of the representations.
void check_layout(const AlphaFold2Sizes& own, nn::Layers& layers) {
  const bool is_split = layers.batch_parts() > 1 || layers.features(own.pair_features, nn::Place::Inside)->is_split() ||
                        layers.features(own.pair_features, nn::Place::Outside)->is_split();
  require(!is_split, "parallel", "parallel.tensor.size must be 1 for AlphaFold 2: got more; its pairs have ",
          own.pair_heads,
          " heads, every rank would keep the whole pair representation, and a block would sum it over "
          "ranks twelve times; use parallel.sequence with mode axial, which divides the pairs");
}

/// The sizes of a batch, from its fields.
struct Sides {
  int64_t rows, residues, clusters, extra, templates;
};

Sides sides_of(const tensor::Batch& batch, bool with_templates) {
  return {.rows = batch.rows(),
          .residues = batch.at("aatype").size(1),
          .clusters = batch.at("msa_feat").size(1),
          .extra = std::max<int64_t>(batch.at("extra_msa").size(1), 1),
          .templates = with_templates ? batch.at("template_aatype").size(1) : 0};
}

std::vector<State> states_of(const ModelShape& shape, at::ScalarType dtype) {
  using tensor::Dim;
  using Sizes = std::vector<int64_t>;
  const auto own = shape.own.as<AlphaFold2Sizes>();
  const auto state = [&](const char* name, std::vector<Dim> dims, const auto& sizes, bool is_wide = false) -> State {
    const auto of_step = [=, with = own.templates > 0](const nn::ForwardContext& step, int64_t block) -> Sizes {
      return sizes(sides_of(*step.batch, with), block);
    };
    State made{.name = name, .dims = std::move(dims), .sizes = of_step};
    if (is_wide) made.dtype = at::promote_types(dtype, at::kFloat);
    return made;
  };
  // Ranks cut pairs along i, and alignments along their rows (nn/axial_ranks.h).
  const std::vector<Dim> pair{Dim::Row, Dim::Token, Dim::Other, Dim::Feature},
      residue{Dim::Row, Dim::Other, Dim::Feature};
  const auto of_residues = [own](const Sides& b, int64_t) -> Sizes {
    return {b.rows, b.residues, own.structure_features};
  };
  return {
      state("pair", pair,
            [own](const Sides& b, int64_t) -> Sizes { return {b.rows, b.residues, b.residues, own.pair_features}; }),
      state("alignment", pair,
            [own](const Sides& b, int64_t) -> Sizes {
              return {b.rows, b.clusters + b.templates, b.residues, own.alignment_features};
            }),
      state("extra", pair,
            [own](const Sides& b, int64_t) -> Sizes { return {b.rows, b.extra, b.residues, own.extra_features}; }),
      state("templates", {Dim::Row, Dim::Other, Dim::Token, Dim::Other, Dim::Feature},
            [own](const Sides& b, int64_t) -> Sizes {
              return {b.rows, b.templates, b.residues, b.residues, own.template_features};
            }),
      state("unfolded", residue, of_residues),
      state("structure", residue, of_residues),
      state(
          "frames", {Dim::Row, Dim::Other, Dim::Other, Dim::Other},
          [own](const Sides& b, int64_t) -> Sizes { return {b.rows, own.structure_layers, b.residues, 7}; }, true),
      state(
          "angles", {Dim::Row, Dim::Other, Dim::Other, Dim::Other, Dim::Other},
          [own](const Sides& b, int64_t) -> Sizes {
            return {b.rows, own.structure_layers, b.residues, ops::kTorsions, 2};
          },
          true)};
}

Embed embedding_of(const AlphaFold2Sizes& own, nn::Layers& layers) {
  const auto embedding = std::make_shared<const AlignmentEmbedding>(
      AlignmentEmbeddingSizes{own.alignment_features, own.pair_features, own.extra_features, own.max_offset}, layers);
  const auto templates =
      own.templates > 0 ? std::make_shared<const TemplateEmbedding>(template_sizes(own), layers) : nullptr;
  const auto run = [=, ranks = layers.axial_ranks()](States& states, const tensor::Batch& batch,
                                                     const nn::ForwardContext&) {
    const int64_t further = templates ? batch.at("template_aatype").size(1) : 0;
    states[kPair] = embedding->pairs(batch);
    states[kAlignment] = embedding->rows(batch, further);
    states[kExtra] = embedding->extra_rows(batch);
    if (!templates) return;
    const int64_t clusters = batch.at("msa_feat").size(1);
    const nn::Range own = after_first_of(ranks->own(clusters + further), clusters);
    states[kAlignment] = at::cat({states[kAlignment], templates->rows(batch).narrow(1, own.first, own.size)}, 1);
    states[kTemplates] = templates->pairs(batch);
  };
  std::vector<int> writes{kPair, kAlignment, kExtra};
  if (templates) writes.push_back(kTemplates);
  return Embed(writes, run);
}

void add_template_blocks(Model& model, const AlphaFold2Sizes& own, nn::Layers& layers) {
  for (int64_t i = 0; i < template_blocks(own); ++i) {
    const std::string name = concat("blocks.", i);
    const auto block = std::make_shared<const TemplateBlock>(layers, name, template_sizes(own));
    if (i + 1 < template_blocks(own)) {
      const auto run = [block](States& states, const nn::ForwardContext& step) {
        states[kTemplates] = block->forward(states[kTemplates], pair_mask(*step.batch), step);
      };
      model.blocks.push_back({{kTemplates}, {kTemplates}, run});
      continue;
    }
    const auto attention = std::make_shared<const TemplateAttention>(layers, name, template_sizes(own));
    const auto run = [block, attention](States& states, const nn::ForwardContext& step) {
      copy_kept_inputs({&states[kTemplates], &states[kPair]});
      const at::Tensor templates = block->forward(states[kTemplates], pair_mask(*step.batch), step);
      states[kPair] = attention->joined(states[kPair], templates, step.batch->at("template_mask"));
    };
    model.blocks.push_back({{kPair, kTemplates}, {kPair}, run});
  }
}

void add_evoformer_blocks(Model& model, const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<AlphaFold2Sizes>();
  for (int64_t i = 0; i < own.extra_blocks; ++i) {
    const auto block =
        std::make_shared<const EvoformerBlock>(layers, concat("blocks.", model.blocks.size()), extra_sizes(own));
    const auto run = [block](States& states, const nn::ForwardContext& step) {
      const EvoformerMasks masks{.alignment = extra_mask(*step.batch), .pair = pair_mask(*step.batch)};
      const Evoformer out = block->forward({states[kExtra], states[kPair]}, masks, step);
      states[kExtra] = out.m, states[kPair] = out.z;
    };
    std::vector<int> writes{kPair};
    if (i + 1 < own.extra_blocks) writes.push_back(kExtra);
    model.blocks.push_back({{kPair, kExtra}, writes, run});
  }
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block =
        std::make_shared<const EvoformerBlock>(layers, concat("blocks.", model.blocks.size()), evoformer_sizes(own));
    const auto run = [block, with = own.templates > 0](States& states, const nn::ForwardContext& step) {
      const EvoformerMasks masks{.alignment = rows_mask(*step.batch, with), .pair = pair_mask(*step.batch)};
      const Evoformer out = block->forward({states[kAlignment], states[kPair]}, masks, step);
      states[kAlignment] = out.m, states[kPair] = out.z;
    };
    model.blocks.push_back({{kPair, kAlignment}, {kPair, kAlignment}, run});
  }
}

void add_structure_module(Model& model, const AlphaFold2Sizes& own, nn::Layers& layers) {
  const std::string name = concat("blocks.", model.blocks.size());
  const std::shared_ptr<nn::Dense> single =
      nn::normed_layer(layers, name + ".linear", own.alignment_features, own.structure_features, true);
  const auto module = std::make_shared<const StructureModule>(name, structure_sizes(own), layers);
  const auto run = [single, module, ranks = layers.axial_ranks()](States& states, const nn::ForwardContext& step) {
    const at::Tensor query = ranks->summed_part(query_row(states[kAlignment], *ranks), 1);
    states[kUnfolded] = ranks->gathered(single->forward(query), 1, states[kPair].size(2));
    const StackedLayers layers =
        stacked(module->forward(states[kUnfolded], states[kPair], step.batch->at("seq_mask"), step));
    states[kStructure] = layers.structure;
    states[kFrames] = layers.frames;
    states[kAngles] = layers.angles;
  };
  model.blocks.push_back({{kPair, kAlignment}, {kUnfolded, kStructure, kFrames, kAngles}, run});
}

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<AlphaFold2Sizes>();
  check_layout(own, layers);
  Model model;
  const tensor::Batch example = example_folding(s, {.clusters = 1, .extra = 1});
  for (const tensor::Batch::Named& field : example.fields()) model.fields.push_back(field.name);
  model.states = states_of(s, layers.parameters().options().dtype);
  model.embed = embedding_of(own, layers);
  add_template_blocks(model, own, layers);
  add_evoformer_blocks(model, s, layers);
  add_structure_module(model, own, layers);
  const auto norm = [ranks = layers.axial_ranks(), with = own.templates > 0](States& states,
                                                                             const nn::ForwardContext& step) {
    const Sides sides = sides_of(*step.batch, with);
    const nn::Range rows = first_of(ranks->own(sides.clusters + sides.templates), sides.clusters);
    states[kAlignment] = states[kAlignment].narrow(1, 0, rows.size);
  };
  model.norm = Block({kPair, kAlignment, kUnfolded, kStructure, kFrames, kAngles}, {kAlignment}, norm);
  FoldingHeads heads{.ranks = layers.axial_ranks(),
                     .has_template_rows = own.templates > 0,
                     .pair = kPair,
                     .alignment = kAlignment,
                     .structure = kStructure,
                     .unfolded = kUnfolded,
                     .frames = kFrames,
                     .angles = kAngles};
  add_alphafold_heads(heads,
                      {.alignment = own.alignment_features,
                       .pair = own.pair_features,
                       .structure = own.structure_features,
                       .confidence = own.confidence_features,
                       .errors = own.pae},
                      layers);
  model.folding = std::make_shared<const FoldingHeads>(std::move(heads));
  return model;
}

/// Returns the sizes of the toy of examples/folds.toml.
AlphaFold2Sizes tiny() {
  return {.templates = 0,
          .alignment_features = 32,
          .pair_features = 32,
          .extra_features = 16,
          .template_features = 16,
          .structure_features = 48,
          .extra_blocks = 1,
          .template_blocks = 1,
          .structure_layers = 4,
          .alignment_heads = 4,
          .alignment_width = 8,
          .pair_heads = 2,
          .pair_width = 16,
          .extra_heads = 2,
          .extra_width = 8,
          .template_heads = 2,
          .template_width = 8,
          .lookup_heads = 2,
          .lookup_width = 8,
          .outer = 8,
          .triangle = 32,
          .template_triangle = 16,
          .transition = 2,
          .point_heads = 4,
          .point_width = 8,
          .angle_features = 32,
          .confidence_features = 32,
          .alignment_dropout = 0,
          .pair_dropout = 0,
          .structure_dropout = 0};
}

Preset preset(const char* name, int64_t layers, const AlphaFold2Sizes& own) {
  ModelShape shape{.layers = layers, .tied = false, .own = own};
  settle(shape);
  return {name, shape};
}

}  // namespace alphafold2

Architecture alphafold2_architecture() {
  return {
      .name = "alphafold2",
      .own = AlphaFold2Sizes{},
      .presets = {alphafold2::preset("alphafold2-tiny", 2, alphafold2::tiny()),
                  alphafold2::preset("alphafold2", 48, {}), alphafold2::preset("alphafold2-ptm", 48, {.pae = true})},
      .make = alphafold2::make,
      .task = alphafold2::task,
      .unused = {"hidden", "heads", "kv_heads", "head_dim", "ffn", "positions"},
      .settle = alphafold2::settle,
      .hugging_face = alphafold2_folder()};
}

}  // namespace colossal::models
