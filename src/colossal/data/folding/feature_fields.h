// The fields that folding models read (models/folding/folding_model.h) and their dimensions, as samples and files have
// them.
//
//   for (const data::FeatureField& field : data::feature_fields())
//     if (field.has_passes()) batch_of_pass(field.name);
//   const tensor::Batch row = data::padded_features(batch, {.residues = 256, .clusters = 128, .extra = 1024});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "colossal/tensor/batch.h"

namespace colossal::data {

inline constexpr int64_t kTargetFeatures = 22;     ///< of a residue: break of the chain, 21 types
inline constexpr int64_t kAlignmentFeatures = 49;  ///< of a letter in a cluster: see make_features()

/// A field of a sample.
struct FeatureField {
  const char* name;
  /// Its dimensions after the rows of the batch: P passes, S clusters, E extra rows, T templates, N residues.
  std::string_view dims;
  std::vector<int64_t> features{};  ///< sizes of the dimensions after these
  int64_t types = 0;                ///< number of values of an int64 field, from 0 on; 0 = a field of numbers
  int64_t padding = 0;              ///< what padded elements are
  bool is_label = false;            ///< losses read it, models do not

  bool has_passes() const { return dims.starts_with('P'); }
};

/// Returns all fields: those of models, and the labels of training. The table lives as long as the program.
std::span<const FeatureField> feature_fields();

/// Returns a field of a batch whose first dimension are its rows. No layout splits the others.
tensor::Field feature_of(at::Tensor values);

/// The sizes of the dimensions of fields; 0 = as they are.
struct FeatureSizes {
  int64_t residues = 0, clusters = 0, extra = 0, templates = 0;
};

/// Returns the batch with masked residues, rows and templates at the end of all dimensions, so that chains fit in one
/// batch. Fields that are not in feature_fields() stay as they are. Padded residues are of the unknown type; all other
/// padded elements are 0.
/// Errors ("features"): a field is longer.
tensor::Batch padded_features(const tensor::Batch& batch, const FeatureSizes& sizes);

}  // namespace colossal::data
