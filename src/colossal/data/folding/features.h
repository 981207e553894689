// Features: what a folding model reads of a chain, its alignment and its templates.
//
//   data::FoldingChain chain{.name = "x", .sequence = sequence, .place = "x.fasta:1"};
//   chain.alignment = protein::read_alignment("x.a3m");
//   const tensor::Batch row = data::make_features(chain, {.clusters = 512, .extra = 5120, .seed = 3});
//   const at::Tensor& alignment = row.at("msa_feat");                                       // [1, P, S, N, 49]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/folding/alignment_draws.h"
#include "colossal/data/folding/clusters.h"
#include "colossal/data/folding/template_features.h"
#include "colossal/protein/alignment.h"
#include "colossal/tensor/batch.h"

namespace colossal::data {

/// A chain and what is known of it.
struct FoldingChain {
  std::string name;                          ///< draws follow from it
  std::string sequence;                      ///< letters A to Z
  std::string place;                         ///< where the sequence is from, for messages; empty = the name
  protein::Alignment alignment{};            ///< no rows = the sequence alone
  std::vector<FoldingTemplate> templates{};  ///< the best first
};

/// What features have of a chain.
struct FeatureOptions {
  int64_t clusters = 512;   ///< rows of the clustered alignment with the query
  int64_t extra = 1024;     ///< further rows
  int64_t passes = 4;       ///< passes of the model, each with its own draws
  double masked = .15;      ///< share of masked letters
  BlockDeletion deleted{};  ///< rows left out in training
  int64_t templates = 0;    ///< most templates; 0 = no fields of templates
  /// True in training: from 0 to all templates are drawn, at most `templates` of them (Jumper et al. 2021, supplement
  /// 1.2.2). False: the first ones.
  bool draws_templates = false;
  uint64_t seed = 0;
  ColumnRange crop{};  ///< residues that the features have; a size of 0 = all from `first` on
};

/// Returns a batch of one row with the fields that models/folding/folding_model.h names, except recycled ones, in fp32
/// and int64, on the host. The fields that differ between passes have the dimension P after the rows:
///
///   msa_feat [1, P, S, N, 49]   letter of 23 types, after masking; whether there are deletions; 2/pi atan(d / 3) of
///                               their number d; the shares of letters in the cluster; the same of its mean deletions
///   msa_mask, true_msa, bert_mask [1, P, S, N]   1 = row; the letters before masking; 1 = masked place
///   extra_msa, extra_msa_mask, extra_has_deletion, extra_deletion_value [1, P, E, N]
///
/// S is the least of `clusters` and the rows of the alignment, E that of `extra` and the rows that are left. Rows that
/// a pass deletes leave masked ones at the end. E is at least 1: without further rows it is one that is masked.
///
/// As in AlphaFold the query is the first cluster, the others are drawn, letters are masked, and then each row that is
/// left joins the nearest cluster. A letter that is drawn from its column is drawn from all rows, also deleted ones.
/// Draws are functions of (seed, name, pass) and of the rows and columns of the whole chain, so a crop shows a part of
/// the same features. Templates are drawn once for all passes.
///
/// Cost: rows x S x N / 16 comparisons of bytes for each pass: of 1,428 rows of 191 about 15 ms a pass, of 30,000 rows
/// of 400 about 0.3 s.
/// Errors ("alignment"): protein::require_query(). Errors ("template"): aligned_template(). Errors ("features"): no
///         residue, an option out of its range, a crop outside the chain.
tensor::Batch make_features(const FoldingChain& chain, const FeatureOptions& options);

/// Returns the field `target_feat` [..., 22] of types [...].
at::Tensor target_features(const at::Tensor& types);

}  // namespace colossal::data
