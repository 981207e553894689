// Files of features: what a folding model reads of a chain, as safetensors under AlphaFold's names.
//
//   run::write_features("x.safetensors", data::make_features(chain, options));
//   const tensor::Batch row = run::read_features("x.safetensors");
//
// Every tensor has a leading dimension of passes, as AlphaFold's features have, also those that are equal in all
// passes. Indices are int32, all else fp32.
#pragma once
#include <string>

#include "colossal/tensor/batch.h"

namespace colossal::run {

/// Writes the fields of a batch of one row that data::feature_fields() lists, if the batch has them.
/// Errors ("features"): other rows than one; a field of other dimensions. Errors: those of SafetensorsWriter.
void write_features(const std::string& path, const tensor::Batch& batch);

/// Reads a file of features into a batch of one row, as data::make_features() returns it. Tensors of other names are
/// ignored, and these may be missing, because they follow from others:
///
///   seq_mask, msa_mask, extra_msa_mask, template_mask   ones
///   residue_index                                       0 to N - 1
///   aatype, target_feat                                 from one another
///   extra_has_deletion                                  where extra_deletion_value is not 0
///   template_pseudo_beta, template_pseudo_beta_mask     from types and atoms
///
/// The fields of templates and the labels (true_msa, bert_mask) may be missing as well; the batch then lacks them.
/// Indices may be of any type of integers, numbers of any other type.
/// Errors ("features"), with file and name: a missing tensor, other sizes, values outside the range, numbers that are
///         not finite, other values in a further pass where passes must agree. Errors: those of SafetensorsReader.
tensor::Batch read_features(const std::string& path);

}  // namespace colossal::run
