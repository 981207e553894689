#include "colossal/checkpoint/folding/names.h"

#include <string_view>
#include <utility>

namespace colossal::checkpoint {
namespace {

constexpr char kAlphaFold[] = "alphafold/alphafold_iteration/";

struct AlphaFoldName {
  std::string_view theirs, ours;
};

constexpr AlphaFoldName kStacks[] = {
    {"evoformer/evoformer_iteration/", "evoformer.blocks.{}."},
    {"evoformer/extra_msa_stack/", "extra_msa_stack.blocks.{}."},
    {"evoformer/template_embedding/single_template_embedding/template_pair_stack/__layer_stack_no_state/",
     "template_embedder.template_pair_stack.blocks.{}."},
};

/// Modules outside of stacks.
constexpr AlphaFoldName kModules[] = {
    {"evoformer/preprocess_1d", "input_embedder.linear_tf_m"},
    {"evoformer/preprocess_msa", "input_embedder.linear_msa_m"},
    {"evoformer/left_single", "input_embedder.linear_tf_z_i"},
    {"evoformer/right_single", "input_embedder.linear_tf_z_j"},
    {"evoformer/pair_activiations", "input_embedder.linear_relpos"},  // spelled so
    {"evoformer/prev_pos_linear", "recycling_embedder.linear"},
    {"evoformer/prev_msa_first_row_norm", "recycling_embedder.layer_norm_m"},
    {"evoformer/prev_pair_norm", "recycling_embedder.layer_norm_z"},
    {"evoformer/extra_msa_activations", "extra_msa_embedder.linear"},
    {"evoformer/single_activations", "evoformer.linear"},
    {"evoformer/template_single_embedding", "template_embedder.template_single_embedder.linear_1"},
    {"evoformer/template_projection", "template_embedder.template_single_embedder.linear_2"},
    {"evoformer/template_embedding/attention", "template_embedder.template_pointwise_att.mha"},
    {"evoformer/template_embedding/single_template_embedding/embedding2d",
     "template_embedder.template_pair_embedder.linear"},
    {"evoformer/template_embedding/single_template_embedding/output_layer_norm",
     "template_embedder.template_pair_stack.layer_norm"},
    {"structure_module/single_layer_norm", "structure_module.layer_norm_s"},
    {"structure_module/pair_layer_norm", "structure_module.layer_norm_z"},
    {"structure_module/initial_projection", "structure_module.linear_in"},
    {"structure_module/fold_iteration/invariant_point_attention/q_scalar", "structure_module.ipa.linear_q"},
    {"structure_module/fold_iteration/invariant_point_attention/kv_scalar", "structure_module.ipa.linear_kv"},
    {"structure_module/fold_iteration/invariant_point_attention/q_point_local",
     "structure_module.ipa.linear_q_points.linear"},
    {"structure_module/fold_iteration/invariant_point_attention/kv_point_local",
     "structure_module.ipa.linear_kv_points.linear"},
    {"structure_module/fold_iteration/invariant_point_attention/attention_2d", "structure_module.ipa.linear_b"},
    {"structure_module/fold_iteration/invariant_point_attention/output_projection", "structure_module.ipa.linear_out"},
    {"structure_module/fold_iteration/attention_layer_norm", "structure_module.layer_norm_ipa"},
    {"structure_module/fold_iteration/transition", "structure_module.transition.layers.0.linear_1"},
    {"structure_module/fold_iteration/transition_1", "structure_module.transition.layers.0.linear_2"},
    {"structure_module/fold_iteration/transition_2", "structure_module.transition.layers.0.linear_3"},
    {"structure_module/fold_iteration/transition_layer_norm", "structure_module.transition.layer_norm"},
    {"structure_module/fold_iteration/affine_update", "structure_module.bb_update.linear"},
    {"structure_module/fold_iteration/rigid_sidechain/input_projection", "structure_module.angle_resnet.linear_in"},
    {"structure_module/fold_iteration/rigid_sidechain/input_projection_1",
     "structure_module.angle_resnet.linear_initial"},
    {"structure_module/fold_iteration/rigid_sidechain/resblock1", "structure_module.angle_resnet.layers.0.linear_1"},
    {"structure_module/fold_iteration/rigid_sidechain/resblock2", "structure_module.angle_resnet.layers.0.linear_2"},
    {"structure_module/fold_iteration/rigid_sidechain/resblock1_1", "structure_module.angle_resnet.layers.1.linear_1"},
    {"structure_module/fold_iteration/rigid_sidechain/resblock2_1", "structure_module.angle_resnet.layers.1.linear_2"},
    {"structure_module/fold_iteration/rigid_sidechain/unnormalized_angles", "structure_module.angle_resnet.linear_out"},
    {"predicted_lddt_head/input_layer_norm", "aux_heads.plddt.layer_norm"},
    {"predicted_lddt_head/act_0", "aux_heads.plddt.linear_1"},
    {"predicted_lddt_head/act_1", "aux_heads.plddt.linear_2"},
    {"predicted_lddt_head/logits", "aux_heads.plddt.linear_3"},
    {"distogram_head/half_logits", "aux_heads.distogram.linear"},
    {"masked_msa_head/logits", "aux_heads.masked_msa.linear"},
    {"experimentally_resolved_head/logits", "aux_heads.experimentally_resolved.linear"},
    {"predicted_aligned_error_head/logits", "aux_heads.tm.linear"},
};

/// Modules of a block. Those of pairs are behind `pair_stack.`, but in blocks of templates.
constexpr AlphaFoldName kInBlock[] = {
    {"msa_row_attention_with_pair_bias/query_norm", "msa_att_row.layer_norm_m"},
    {"msa_row_attention_with_pair_bias/feat_2d_norm", "msa_att_row.layer_norm_z"},
    {"msa_row_attention_with_pair_bias/attention", "msa_att_row.mha"},
    {"msa_column_attention/query_norm", "msa_att_col._msa_att.layer_norm_m"},
    {"msa_column_attention/attention", "msa_att_col._msa_att.mha"},
    {"msa_column_global_attention/query_norm", "msa_att_col.layer_norm_m"},
    {"msa_column_global_attention/attention", "msa_att_col.global_attention"},
    {"msa_transition/input_layer_norm", "msa_transition.layer_norm"},
    {"msa_transition/transition1", "msa_transition.linear_1"},
    {"msa_transition/transition2", "msa_transition.linear_2"},
    {"outer_product_mean/layer_norm_input", "outer_product_mean.layer_norm"},
    {"outer_product_mean/left_projection", "outer_product_mean.linear_1"},
    {"outer_product_mean/right_projection", "outer_product_mean.linear_2"},
    {"triangle_attention_starting_node/query_norm", "pair_stack.tri_att_start.layer_norm"},
    {"triangle_attention_starting_node/attention", "pair_stack.tri_att_start.mha"},
    {"triangle_attention_ending_node/query_norm", "pair_stack.tri_att_end.layer_norm"},
    {"triangle_attention_ending_node/attention", "pair_stack.tri_att_end.mha"},
    {"triangle_multiplication_outgoing/layer_norm_input", "pair_stack.tri_mul_out.layer_norm_in"},
    {"triangle_multiplication_outgoing/left_projection", "pair_stack.tri_mul_out.linear_a_p"},
    {"triangle_multiplication_outgoing/right_projection", "pair_stack.tri_mul_out.linear_b_p"},
    {"triangle_multiplication_outgoing/left_gate", "pair_stack.tri_mul_out.linear_a_g"},
    {"triangle_multiplication_outgoing/right_gate", "pair_stack.tri_mul_out.linear_b_g"},
    {"triangle_multiplication_outgoing/center_layer_norm", "pair_stack.tri_mul_out.layer_norm_out"},
    {"triangle_multiplication_outgoing/output_projection", "pair_stack.tri_mul_out.linear_z"},
    {"triangle_multiplication_outgoing/gating_linear", "pair_stack.tri_mul_out.linear_g"},
    {"triangle_multiplication_incoming/layer_norm_input", "pair_stack.tri_mul_in.layer_norm_in"},
    {"triangle_multiplication_incoming/left_projection", "pair_stack.tri_mul_in.linear_b_p"},
    {"triangle_multiplication_incoming/right_projection", "pair_stack.tri_mul_in.linear_a_p"},
    {"triangle_multiplication_incoming/left_gate", "pair_stack.tri_mul_in.linear_b_g"},
    {"triangle_multiplication_incoming/right_gate", "pair_stack.tri_mul_in.linear_a_g"},
    {"triangle_multiplication_incoming/center_layer_norm", "pair_stack.tri_mul_in.layer_norm_out"},
    {"triangle_multiplication_incoming/output_projection", "pair_stack.tri_mul_in.linear_z"},
    {"triangle_multiplication_incoming/gating_linear", "pair_stack.tri_mul_in.linear_g"},
    {"pair_transition/input_layer_norm", "pair_stack.pair_transition.layer_norm"},
    {"pair_transition/transition1", "pair_stack.pair_transition.linear_1"},
    {"pair_transition/transition2", "pair_stack.pair_transition.linear_2"},
};

struct AlphaFoldLeaf {
  std::string_view theirs, ours;
  AlphaFoldForm form;
};

/// Names of tensors in modules of the tables above.
constexpr AlphaFoldLeaf kLeaves[] = {
    {"weights", "weight", AlphaFoldForm::OutputLast},
    {"bias", "bias", AlphaFoldForm::Vector},
    {"scale", "weight", AlphaFoldForm::Vector},
    {"offset", "bias", AlphaFoldForm::Vector},
    {"query_w", "linear_q.weight", AlphaFoldForm::InputFirst},
    {"key_w", "linear_k.weight", AlphaFoldForm::InputFirst},
    {"value_w", "linear_v.weight", AlphaFoldForm::InputFirst},
    {"gating_w", "linear_g.weight", AlphaFoldForm::InputFirst},
    {"gating_b", "linear_g.bias", AlphaFoldForm::Vector},
    {"output_w", "linear_o.weight", AlphaFoldForm::OutputLast},
    {"output_b", "linear_o.bias", AlphaFoldForm::Vector},
};

/// Tensors of modules that have others within them.
constexpr AlphaFoldLeaf kAlphaFoldTensors[] = {
    {"structure_module/fold_iteration/invariant_point_attention//trainable_point_weights",
     "structure_module.ipa.head_weights", AlphaFoldForm::Vector},
};
constexpr AlphaFoldLeaf kTensorsInBlock[] = {
    {"msa_row_attention_with_pair_bias//feat_2d_weights", "msa_att_row.linear_z.weight", AlphaFoldForm::OutputLast},
    {"triangle_attention_starting_node//feat_2d_weights", "pair_stack.tri_att_start.linear.weight",
     AlphaFoldForm::OutputLast},
    {"triangle_attention_ending_node//feat_2d_weights", "pair_stack.tri_att_end.linear.weight",
     AlphaFoldForm::OutputLast},
    {"outer_product_mean//output_w", "outer_product_mean.linear_out.weight", AlphaFoldForm::OutputLast},
    {"outer_product_mean//output_b", "outer_product_mean.linear_out.bias", AlphaFoldForm::Vector},
};

/// Finds a name in tables of tensors and of modules.
template <class Tensors, class Modules>
std::optional<AlphaFoldPlace> place_in(std::string_view name, const Tensors& tensors, const Modules& modules) {
  for (const AlphaFoldLeaf& tensor : tensors)
    if (name == tensor.theirs) return AlphaFoldPlace{.name = std::string(tensor.ours), .form = tensor.form};
  const size_t slashes = name.find("//");
  if (slashes == std::string_view::npos) return {};
  for (const AlphaFoldName& module : modules) {
    if (name.substr(0, slashes) != module.theirs) continue;
    for (const AlphaFoldLeaf& leaf : kLeaves)
      if (name.substr(slashes + 2) == leaf.theirs)
        return AlphaFoldPlace{.name = std::string(module.ours) + "." + std::string(leaf.ours), .form = leaf.form};
  }
  return {};
}

constexpr AlphaFoldName kOldParts[] = {
    {".core.msa_transition.", ".msa_transition."},
    {".core.outer_product_mean.", ".outer_product_mean."},
    {".core.", ".pair_stack."},
    {".ipa.linear_q_points.weight", ".ipa.linear_q_points.linear.weight"},
    {".ipa.linear_q_points.bias", ".ipa.linear_q_points.linear.bias"},
    {".ipa.linear_kv_points.weight", ".ipa.linear_kv_points.linear.weight"},
    {".ipa.linear_kv_points.bias", ".ipa.linear_kv_points.linear.bias"},
};

}  // namespace

bool is_alphafold_name(const std::string& name) { return name.starts_with("alphafold/"); }

std::optional<AlphaFoldPlace> place_of_alphafold(const std::string& name) {
  if (!name.starts_with(kAlphaFold)) return {};
  const std::string_view rest = std::string_view(name).substr(std::string_view(kAlphaFold).size());
  for (const AlphaFoldName& stack : kStacks) {
    if (!rest.starts_with(stack.theirs)) continue;
    std::optional<AlphaFoldPlace> place = place_in(rest.substr(stack.theirs.size()), kTensorsInBlock, kInBlock);
    if (!place) return {};
    constexpr std::string_view kPairStack = "pair_stack.";
    if (stack.ours.starts_with("template_embedder") && place->name.starts_with(kPairStack))
      place->name.erase(0, kPairStack.size());
    place->name.insert(0, stack.ours);
    place->stacked = true;
    return place;
  }
  return place_in(rest, kAlphaFoldTensors, kModules);
}

std::string openfold_name(std::string name) {
  if (name.starts_with("model.")) name.erase(0, 6);
  for (const char* part :
       {"template_pair_embedder.", "template_angle_embedder.", "template_pair_stack.", "template_pointwise_att."})
    if (name.starts_with(part)) name.insert(0, "template_embedder.");
  constexpr std::string_view kAngles = "template_embedder.template_angle_embedder.";
  if (name.starts_with(kAngles)) name.replace(0, kAngles.size(), "template_embedder.template_single_embedder.");
  for (const AlphaFoldName& part : kOldParts)
    if (const size_t at = name.find(part.theirs); at != std::string::npos)
      name.replace(at, part.theirs.size(), part.ours);
  return name;
}

}  // namespace colossal::checkpoint
