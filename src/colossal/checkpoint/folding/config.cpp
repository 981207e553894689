#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/folding/weights.h"
#include "colossal/checkpoint/strided_weights.h"

namespace colossal::checkpoint {
namespace {

constexpr char kFoldingConfig[] = "hugging face";
constexpr int64_t kStructureLayers = 8, kLookupHeads = 4, kTemplates = 4;  // published

/// The sizes of tensors of a file, by their names in OpenFold.
class FoldingShapes {
 public:
  FoldingShapes(const WeightSource& weights, const std::string& path) : weights_(weights), path_(path) {}

  bool has(const std::string& name) const { return weights_.entries().contains(name); }
  int64_t size(const std::string& name, size_t dim) const {
    const auto found = weights_.entries().find(name);
    require(found != weights_.entries().end(), kFoldingConfig, path_, " must hold the weights of AlphaFold 2: got no ",
            name, "; name a file of AlphaFold (.npz) or OpenFold (.pt)");
    const std::vector<int64_t>& shape = found->second->shape;
    require(dim < shape.size() && shape[dim] > 0, kFoldingConfig, path_, ": ", name, " must have more than ", dim,
            " dimensions, none of them empty: got ", at::IntArrayRef(shape));
    return shape[dim];
  }
  int64_t rows(const std::string& layer) const { return size(layer + ".weight", 0); }
  /// Returns the number of blocks whose tensors begin with `stack` and a number.
  int64_t blocks(const std::string& stack) const {
    std::set<std::string> numbers;
    for (auto at = weights_.entries().lower_bound(stack);
         at != weights_.entries().end() && at->first.starts_with(stack); ++at)
      numbers.insert(at->first.substr(stack.size(), at->first.find('.', stack.size()) - stack.size()));
    return static_cast<int64_t>(numbers.size());
  }

 private:
  const WeightSource& weights_;
  std::string path_;
};

void add_templates(const FoldingShapes& shapes, int64_t lookup_heads, nlohmann::json& config) {
  const std::string stack = "template_embedder.template_pair_stack.blocks.";
  if (!shapes.has("template_embedder.template_pair_embedder.linear.weight")) {
    config["templates"] = 0;
    return;
  }
  const int64_t features = shapes.rows("template_embedder.template_pair_embedder.linear"),
                heads = shapes.rows(stack + "0.tri_att_start.linear");
  config["templates"] = kTemplates;
  config["template_features"] = features;
  config["template_blocks"] = shapes.blocks(stack);
  config["template_heads"] = heads;
  config["template_width"] = shapes.rows(stack + "0.tri_att_start.mha.linear_q") / heads;
  config["template_triangle"] = shapes.size(stack + "0.tri_mul_out.linear_z.weight", 1);
  config["template_transition"] = shapes.rows(stack + "0.pair_transition.linear_1") / features;
  config["lookup_heads"] = lookup_heads;
  config["lookup_width"] = shapes.rows("template_embedder.template_pointwise_att.mha.linear_q") / lookup_heads;
}

/// Returns the heads of the attention to templates, which AlphaFold's [in, heads, width] tells and OpenFold's does not.
int64_t lookup_heads_of(const WeightSource& file) {
  const auto found =
      file.entries().find("alphafold/alphafold_iteration/evoformer/template_embedding/attention//query_w");
  if (found == file.entries().end() || found->second->shape.size() != 3) return kLookupHeads;
  return std::max<int64_t>(found->second->shape[1], 1);
}

}  // namespace

nlohmann::json folding_config(const std::string& path) {
  std::unique_ptr<WeightSource> file = open_strided_weights(path);
  const int64_t lookup_heads = lookup_heads_of(*file);
  const std::unique_ptr<WeightSource> weights = FoldingWeights::of(std::move(file), path);
  const FoldingShapes shapes(*weights, path);
  const std::string block = "evoformer.blocks.0.", extra = "extra_msa_stack.blocks.0.",
                    points = "structure_module.ipa.";
  const int64_t pair = shapes.rows("input_embedder.linear_tf_z_i"), heads = shapes.rows(block + "msa_att_row.linear_z"),
                pair_heads = shapes.rows(block + "pair_stack.tri_att_start.linear"),
                extra_heads = shapes.rows(extra + "msa_att_row.linear_z"),
                point_heads = shapes.size(points + "head_weights", 0),
                query_points = shapes.rows(points + "linear_q_points.linear") / (3 * point_heads);
  nlohmann::json config{
      {"model_type", "alphafold2"},
      {"layers", shapes.blocks("evoformer.blocks.")},
      {"pae", shapes.has("aux_heads.tm.linear.weight")},
      {"alignment_features", shapes.rows("input_embedder.linear_msa_m")},
      {"pair_features", pair},
      {"extra_features", shapes.rows("extra_msa_embedder.linear")},
      {"structure_features", shapes.rows("evoformer.linear")},
      {"extra_blocks", shapes.blocks("extra_msa_stack.blocks.")},
      {"structure_layers", kStructureLayers},
      {"alignment_heads", heads},
      {"alignment_width", shapes.rows(block + "msa_att_row.mha.linear_q") / heads},
      {"pair_heads", pair_heads},
      {"pair_width", shapes.rows(block + "pair_stack.tri_att_start.mha.linear_q") / pair_heads},
      {"extra_heads", extra_heads},
      {"extra_width", shapes.rows(extra + "msa_att_row.mha.linear_q") / extra_heads},
      {"outer", shapes.rows(block + "outer_product_mean.linear_1")},
      {"triangle", shapes.size(block + "pair_stack.tri_mul_out.linear_z.weight", 1)},
      {"transition", shapes.rows(block + "pair_stack.pair_transition.linear_1") / pair},
      {"point_heads", point_heads},
      {"point_width", shapes.rows(points + "linear_q") / point_heads},
      {"query_points", query_points},
      {"value_points", shapes.rows(points + "linear_kv_points.linear") / (3 * point_heads) - query_points},
      {"angle_features", shapes.rows("structure_module.angle_resnet.linear_in")},
      {"confidence_features", shapes.rows("aux_heads.plddt.linear_1")},
      {"max_offset", (shapes.size("input_embedder.linear_relpos.weight", 1) - 1) / 2}};
  add_templates(shapes, lookup_heads, config);
  return config;
}

}  // namespace colossal::checkpoint
