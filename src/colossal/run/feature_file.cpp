#include "colossal/run/feature_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/data/folding/feature_fields.h"
#include "colossal/data/folding/features.h"

namespace colossal::run {
namespace {

/// Returns the dimensions of a tensor in a file: passes first.
std::string dims_in_file(const data::FeatureField& field) {
  return field.has_passes() ? std::string(field.dims) : concat('P', field.dims);
}

/// Returns true for what a file of features has: all but the places of atoms, which only training knows.
bool is_in_files(const data::FeatureField& field) { return !field.is_label || field.has_passes(); }

/// Reads one file, and keeps the sizes that its tensors have in common.
class FeatureReader {
 public:
  explicit FeatureReader(const std::string& path) : file_(path) {}

  tensor::Batch read() {
    for (const data::FeatureField& field : data::feature_fields())
      if (is_in_files(field) && file_.contains(field.name)) fields_[field.name] = checked(field);
    complete();
    tensor::Batch batch;
    for (const data::FeatureField& field : data::feature_fields())
      if (const auto found = fields_.find(field.name); found != fields_.end())
        batch.add(field.name, data::feature_of(found->second.unsqueeze(0)));
    return batch;
  }

 private:
  /// Returns the field without the dimension of passes, if all passes must have the same values.
  at::Tensor checked(const data::FeatureField& field) {
    const at::Tensor stored = file_.tensor(field.name);
    check_sizes(field, stored);
    const bool is_index = field.types > 0;
    require(!is_index || at::isIntegralType(stored.scalar_type(), false), "features", place(field.name),
            " must have integers: got ", stored.scalar_type(), "; write indices, not vectors of shares");
    const at::Tensor values = stored.to(is_index ? at::kLong : at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (is_index) {
      const bool is_empty = values.numel() == 0;
      const int64_t least = is_empty ? 0 : values.min().item<int64_t>(),
                    most = is_empty ? 0 : values.max().item<int64_t>();
      require(least >= 0 && most < field.types, "features", place(field.name), " must have values from 0 to ",
              field.types - 1, ": got ", least < 0 ? least : most, "; write types in the order of AlphaFold");
    } else {
      require(at::isfinite(values).all().item<bool>(), "features", place(field.name),
              " must have finite numbers: got others; make the features again");
    }
    if (field.has_passes()) return values;
    require(at::equal(values, values.narrow(0, 0, 1).expand_as(values)), "features", place(field.name),
            " must be the same in all passes: got other values in a further one; give each chain a file");
    return values[0];
  }

  void check_sizes(const data::FeatureField& field, const at::Tensor& stored) {
    const std::string dims = dims_in_file(field);
    bool is_right = stored.dim() == static_cast<int64_t>(dims.size() + field.features.size());
    std::string wanted;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (is_right) sizes_.emplace(dims[i], stored.size(static_cast<int64_t>(i)));
      const auto size = sizes_.find(dims[i]);
      is_right = is_right && size->second == stored.size(static_cast<int64_t>(i)) && size->second > 0;
      wanted += (i == 0 ? "" : ", ") + (size == sizes_.end() ? std::string(1, dims[i]) : std::to_string(size->second));
    }
    for (size_t i = 0; i < field.features.size(); ++i) {
      is_right = is_right && stored.size(static_cast<int64_t>(dims.size() + i)) == field.features[i];
      wanted += ", " + std::to_string(field.features[i]);
    }
    require(is_right, "features", place(field.name), " must have the sizes [", wanted, "], passes first: got ",
            stored.sizes(), "; `colossal features` writes such a file");
  }

  void complete() {
    if (!has("aatype") && has("target_feat"))
      fields_["aatype"] = fields_["target_feat"].narrow(-1, 1, data::kTargetFeatures - 1).argmax(-1);
    need("aatype", "or `target_feat`");
    const at::Tensor types = fields_["aatype"];
    derive("target_feat", [&] { return data::target_features(types); });
    derive("seq_mask", [&] { return at::ones(types.sizes(), at::kFloat); });
    derive("residue_index", [&] { return at::arange(types.numel(), at::kLong); });
    need("msa_feat");
    derive("msa_mask", [&] { return at::ones_like(fields_["msa_feat"].select(-1, 0)); });
    for (const char* name : {"extra_msa", "extra_deletion_value"}) need(name);
    derive("extra_msa_mask", [&] { return at::ones_like(fields_["extra_deletion_value"]); });
    derive("extra_has_deletion", [&] { return fields_["extra_deletion_value"].ne(0).to(at::kFloat); });
    complete_templates();
  }

  void complete_templates() {
    const auto is_template = [](const auto& named) { return named.first.starts_with("template_"); };
    if (std::none_of(fields_.begin(), fields_.end(), is_template)) return;
    for (const char* name : {"template_aatype", "template_all_atom_positions", "template_all_atom_masks"}) need(name);
    const at::Tensor types = fields_["template_aatype"];
    const data::PseudoBeta beta =
        data::pseudo_beta(types, fields_["template_all_atom_positions"], fields_["template_all_atom_masks"]);
    derive("template_mask", [&] { return at::ones({types.size(0)}, at::kFloat); });
    derive("template_pseudo_beta", [&] { return beta.positions; });
    derive("template_pseudo_beta_mask", [&] { return beta.mask; });
  }

  bool has(const std::string& name) const { return fields_.count(name) != 0; }

  template <class Make>
  void derive(const std::string& name, const Make& make) {
    if (!has(name)) fields_[name] = make();
  }

  void need(const std::string& name, const char* other = "") const {
    require(has(name), "features", file_.path(), " must have `", name, "`", *other == 0 ? "" : " ", other,
            ": got no tensor of that name; `colossal features` writes such a file");
  }

  std::string place(const char* name) const { return concat(file_.path(), ": `", name, "`"); }

  checkpoint::SafetensorsReader file_;
  std::map<char, int64_t> sizes_;  // of dimensions
  std::map<std::string, at::Tensor> fields_;
};

}  // namespace

void write_features(const std::string& path, const tensor::Batch& batch) {
  require(batch.rows() == 1, "features", "a file of features must have one chain: got ", batch.rows(),
          " rows; write a file for each");
  const at::Tensor alignment = batch.at("msa_feat");
  std::map<std::string, at::Tensor> tensors;
  for (const data::FeatureField& field : data::feature_fields()) {
    const at::Tensor values = batch.find(field.name);
    if (!values.defined() || !is_in_files(field)) continue;
    require(values.dim() == static_cast<int64_t>(1 + field.dims.size() + field.features.size()), "features", "`",
            field.name, "` must have ", 1 + field.dims.size() + field.features.size(), " dimensions: got ",
            values.sizes());
    at::Tensor stored = values[0];
    if (!field.has_passes()) {
      std::vector<int64_t> sizes = stored.sizes().vec();
      sizes.insert(sizes.begin(), alignment.size(1));
      stored = stored.unsqueeze(0).expand(sizes);
    }
    tensors[field.name] = stored.to(field.types > 0 ? at::kInt : at::kFloat);
  }
  checkpoint::write_safetensors(path, tensors, {{"format", "pt"}});
}

tensor::Batch read_features(const std::string& path) { return FeatureReader(path).read(); }

}  // namespace colossal::run
