// Known structures of related chains, brought to the residues of a query.
//
//   const data::FoldingTemplate known{.name = "1abc_A", .chain = structure.chains[0]};
//   const data::AlignedTemplate found = data::aligned_template(sequence, known);
//   tensor::Batch batch = ...;
//   data::add_templates(batch, std::vector{found}, {.first = 0, .size = residues});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/data/folding/clusters.h"
#include "colossal/protein/structure.h"
#include "colossal/tensor/batch.h"

namespace colossal::data {

/// A structure that a model reads in addition to the alignment.
struct FoldingTemplate {
  std::string name;               ///< of the file and chain, for messages
  protein::StructureChain chain;  ///< with the residues that have no atoms
};

/// A template at the residues of a query.
struct AlignedTemplate {
  std::vector<int64_t> types;    ///< [N] of the template's residues; kGapType = none stands there
  std::vector<float> positions;  ///< [N, 37, 3] in Angstrom; zeros where there is no atom
  std::vector<float> mask;       ///< [N, 37] 1 = atom
  int64_t aligned = 0;           ///< residues of the query with one of the template
  int64_t equal = 0;             ///< those of one type
};

/// Aligns a template with a query by their sequences (protein::align_sequences). NH1 and NH2 of arginines are exchanged
/// if NH2 is nearer to CD, as AlphaFold does.
/// Errors ("template"), with the name: a template that stands at less than a tenth of the query, or gives it fewer than
///         5 atoms.
AlignedTemplate aligned_template(std::string_view sequence, const FoldingTemplate& known);

/// Places of CB, of glycines of CA, and whether they are known.
struct PseudoBeta {
  at::Tensor positions;  ///< [..., 3]
  at::Tensor mask;       ///< [...]
};

/// Returns them from types [...], atoms [..., 37, 3] and masks [..., 37].
PseudoBeta pseudo_beta(const at::Tensor& types, const at::Tensor& positions, const at::Tensor& mask);

/// Adds the fields of templates (models/folding/folding_model.h) to a batch of one row, for the residues of `range`.
/// The templates are those of one query; without any there is one that is masked.
/// Errors ("template"): a template of another query, which ends before the range.
void add_templates(tensor::Batch& batch, std::span<const AlignedTemplate> templates, const ColumnRange& range);

}  // namespace colossal::data
