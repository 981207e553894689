#include "support/alphafold_weights.h"

#include <cmath>

#include "support/torch_bytes.h"

namespace colossal::test {
namespace {

/// Adds the tensors of modules to a file. Those of a stack have the number of blocks in front.
class Modules {
 public:
  Modules(NamedShapes& all, std::string prefix, int64_t blocks = 0)
      : all_(all), prefix_("alphafold/alphafold_iteration/" + std::move(prefix)), blocks_(blocks) {}

  void tensor(const std::string& name, std::vector<int64_t> shape) const {
    if (blocks_ > 0) shape.insert(shape.begin(), blocks_);
    all_[prefix_ + name] = std::move(shape);
  }
  void linear(const std::string& module, int64_t in, int64_t out) const {
    tensor(module + "//weights", {in, out});
    tensor(module + "//bias", {out});
  }
  void norm(const std::string& module, int64_t features) const {
    tensor(module + "//scale", {features});
    tensor(module + "//offset", {features});
  }
  /// `keys`: features of k and v; `shared`: k and v have one head.
  void attention(const std::string& module, int64_t features, int64_t keys, int64_t heads, int64_t width, bool gated,
                 bool shared = false) const {
    tensor(module + "//query_w", {features, heads, width});
    for (const char* name : {"//key_w", "//value_w"})
      tensor(module + name, shared ? std::vector<int64_t>{keys, width} : std::vector<int64_t>{keys, heads, width});
    if (gated) tensor(module + "//gating_w", {features, heads, width}), tensor(module + "//gating_b", {heads, width});
    tensor(module + "//output_w", {heads, width, features});
    tensor(module + "//output_b", {features});
  }
  void transition(const std::string& module, int64_t features, int64_t factor) const {
    norm(module + "/input_layer_norm", features);
    linear(module + "/transition1", features, factor * features);
    linear(module + "/transition2", factor * features, features);
  }
  void triangles(int64_t features, int64_t hidden, int64_t width, int64_t factor) const {
    for (const std::string side : {"starting", "ending"}) {
      const std::string module = "triangle_attention_" + side + "_node";
      norm(module + "/query_norm", features);
      tensor(module + "//feat_2d_weights", {features, 2});
      attention(module + "/attention", features, features, 2, width, true);
    }
    for (const std::string side : {"outgoing", "incoming"}) {
      const std::string module = "triangle_multiplication_" + side;
      norm(module + "/layer_norm_input", features);
      for (const char* part : {"/left_projection", "/right_projection", "/left_gate", "/right_gate"})
        linear(module + part, features, hidden);
      norm(module + "/center_layer_norm", hidden);
      linear(module + "/output_projection", hidden, features);
      linear(module + "/gating_linear", features, features);
    }
    transition("pair_transition", features, factor);
  }
  void evoformer(int64_t rows, int64_t pair, bool global) const {
    const std::string row = "msa_row_attention_with_pair_bias";
    norm(row + "/query_norm", rows);
    norm(row + "/feat_2d_norm", pair);
    tensor(row + "//feat_2d_weights", {pair, 2});
    attention(row + "/attention", rows, rows, 2, rows / 2, true);
    const std::string column = global ? "msa_column_global_attention" : "msa_column_attention";
    norm(column + "/query_norm", rows);
    attention(column + "/attention", rows, rows, 2, rows / 2, true, global);
    transition("msa_transition", rows, 4);
    norm("outer_product_mean/layer_norm_input", rows);
    for (const char* side : {"left", "right"})
      linear(std::string("outer_product_mean/") + side + "_projection", rows, 4);
    tensor("outer_product_mean//output_w", {4, 4, pair});
    tensor("outer_product_mean//output_b", {pair});
    triangles(pair, 10, pair / 2, 4);
  }

 private:
  NamedShapes& all_;
  std::string prefix_;
  int64_t blocks_;
};

constexpr int64_t kRows = 16, kPair = 12, kExtra = 8, kStructure = 20, kTemplate = 8;

void add_structure(const Modules& all) {
  all.norm("single_layer_norm", kStructure);
  all.norm("pair_layer_norm", kPair);
  all.linear("initial_projection", kStructure, kStructure);
  const std::string fold = "fold_iteration/", points = fold + "invariant_point_attention",
                    side = fold + "rigid_sidechain/";
  all.tensor(points + "//trainable_point_weights", {2});
  all.linear(points + "/q_scalar", kStructure, 8);
  all.linear(points + "/kv_scalar", kStructure, 16);
  all.linear(points + "/q_point_local", kStructure, 12);
  all.linear(points + "/kv_point_local", kStructure, 30);
  all.linear(points + "/attention_2d", kPair, 2);
  all.linear(points + "/output_projection", 56, kStructure);
  all.norm(fold + "attention_layer_norm", kStructure);
  for (const char* name : {"transition", "transition_1", "transition_2"})
    all.linear(fold + name, kStructure, kStructure);
  all.norm(fold + "transition_layer_norm", kStructure);
  all.linear(fold + "affine_update", kStructure, 6);
  for (const char* name : {"input_projection", "input_projection_1"}) all.linear(side + name, kStructure, 7);
  for (const char* name : {"resblock1", "resblock2", "resblock1_1", "resblock2_1"}) all.linear(side + name, 7, 7);
  all.linear(side + "unnormalized_angles", 7, 14);
}

void add_templates(NamedShapes& shapes) {
  const std::string embedding = "evoformer/template_embedding/", one = embedding + "single_template_embedding/";
  const Modules all(shapes, "");
  all.linear("evoformer/template_single_embedding", 57, kRows);
  all.linear("evoformer/template_projection", kRows, kRows);
  all.attention(embedding + "attention", kPair, kTemplate, 2, 4, false);
  all.linear(one + "embedding2d", 88, kTemplate);
  all.norm(one + "output_layer_norm", kTemplate);
  Modules(shapes, one + "template_pair_stack/__layer_stack_no_state/", 2).triangles(kTemplate, 6, 4, 2);
}

}  // namespace

NamedShapes alphafold_golden_shapes(bool templates) {
  NamedShapes shapes;
  const Modules all(shapes, "");
  all.linear("evoformer/preprocess_1d", 22, kRows);
  all.linear("evoformer/preprocess_msa", 49, kRows);
  for (const char* side : {"left", "right"}) all.linear(std::string("evoformer/") + side + "_single", 22, kPair);
  all.linear("evoformer/pair_activiations", 65, kPair);
  all.linear("evoformer/prev_pos_linear", 15, kPair);
  all.norm("evoformer/prev_msa_first_row_norm", kRows);
  all.norm("evoformer/prev_pair_norm", kPair);
  all.linear("evoformer/extra_msa_activations", 25, kExtra);
  all.linear("evoformer/single_activations", kRows, kStructure);
  Modules(shapes, "evoformer/extra_msa_stack/", 1).evoformer(kExtra, kPair, true);
  Modules(shapes, "evoformer/evoformer_iteration/", 2).evoformer(kRows, kPair, false);
  add_structure(Modules(shapes, "structure_module/"));
  all.norm("predicted_lddt_head/input_layer_norm", kStructure);
  all.linear("predicted_lddt_head/act_0", kStructure, 8);
  all.linear("predicted_lddt_head/act_1", 8, 8);
  all.linear("predicted_lddt_head/logits", 8, 50);
  all.linear("distogram_head/half_logits", kPair, 64);
  all.linear("masked_msa_head/logits", kRows, 23);
  all.linear("experimentally_resolved_head/logits", kStructure, 37);
  all.linear("predicted_aligned_error_head/logits", kPair, 64);
  if (templates) add_templates(shapes);
  return shapes;
}

std::string alphafold_npz(const NamedShapes& shapes) {
  std::vector<ZipPart> parts;
  double t = 0;
  for (const auto& [name, shape] : shapes) {
    ++t;
    std::string text;
    int64_t count = 1;
    for (const int64_t size : shape) text += std::to_string(size) + ",", count *= size;
    std::vector<double> values;
    for (int64_t n = 0; n < count; ++n)
      values.push_back(.2 * std::sin(.7 * static_cast<double>(n) + t) + (name.ends_with("//scale") ? 1 : 0));
    parts.push_back({name + ".npy", npy_of("<f8", "(" + text + ")", raw(values))});
  }
  return zip_of(parts);
}

}  // namespace colossal::test
