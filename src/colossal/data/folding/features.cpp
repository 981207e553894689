#include "colossal/data/folding/features.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/data/folding/feature_fields.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

/// The places of the 49 features of a letter.
enum AlignmentFeature : int64_t { kHasDeletion = 23, kDeletions = 24, kProfile = 25, kMeanDeletions = 48 };

float value_of_deletions(double deletions) {
  return deletions == 0 ? 0 : static_cast<float>(protein::deletion_value(deletions));
}

void check_feature_options(const FoldingChain& chain, const FeatureOptions& options) {
  require(!chain.sequence.empty(), "features", "a chain must have a residue: got none in ", chain.name);
  require(options.clusters >= 1 && options.extra >= 0 && options.passes >= 1 && options.templates >= 0, "features",
          "features need at least 1 cluster and 1 pass, and no negative number: got clusters ", options.clusters,
          ", extra ", options.extra, ", passes ", options.passes, ", templates ", options.templates);
  require(options.masked >= 0 && options.masked <= 1 && options.deleted.share >= 0 && options.deleted.share <= 1,
          "features", "shares must be from 0 to 1: got masked ", options.masked, ", deleted ", options.deleted.share);
  const auto residues = static_cast<int64_t>(chain.sequence.size());
  const ColumnRange& crop = options.crop;
  require(crop.first >= 0 && crop.size >= 0 && crop.first < residues && crop.size <= residues - crop.first, "features",
          "a crop must be within the ", residues, " residues of ", chain.name, ": got ", crop.size, " from ",
          crop.first, " on");
}

/// The fields of all passes, zeros at first.
struct PassFields {
  at::Tensor msa_feat, msa_mask, true_msa, bert_mask;                              // [P, S, N, 49], [P, S, N]
  at::Tensor extra_msa, extra_msa_mask, extra_has_deletion, extra_deletion_value;  // [P, E, N]
};

/// Makes the fields of one chain that differ between passes.
class AlignmentFeatures {
 public:
  AlignmentFeatures(const FoldingChain& chain, const protein::Alignment& alignment, const FeatureOptions& options,
                    ColumnRange range)
      : chain_(chain),
        alignment_(alignment),
        options_(options),
        range_(range),
        letters_(letter_rows(alignment)),
        counts_(letter_counts(letters_)),
        clusters_(std::min(options.clusters, letters_.rows())),
        extra_(std::max<int64_t>(1, std::min(options.extra, letters_.rows() - clusters_))) {
    const at::TensorOptions numbers(at::kFloat), indices(at::kLong);
    const int64_t p = options.passes, n = range.size;
    fields_.msa_feat = at::zeros({p, clusters_, n, kAlignmentFeatures}, numbers);
    for (at::Tensor* field : {&fields_.msa_mask, &fields_.bert_mask}) *field = at::zeros({p, clusters_, n}, numbers);
    fields_.true_msa = at::zeros({p, clusters_, n}, indices);
    fields_.extra_msa = at::zeros({p, extra_, n}, indices);
    for (at::Tensor* field : {&fields_.extra_msa_mask, &fields_.extra_has_deletion, &fields_.extra_deletion_value})
      *field = at::zeros({p, extra_, n}, numbers);
  }

  PassFields make() {
    for (int64_t pass = 0; pass < options_.passes; ++pass) fill(pass);
    return std::move(fields_);
  }

 private:
  void fill(int64_t pass) {
    const uint64_t seed = pass_seed(options_.seed, chain_.name, pass);
    const std::vector<int64_t> rows = drawn_rows(letters_.rows(), options_.deleted, seed);
    const auto all = std::span(rows);
    const auto centers = all.first(std::min(rows.size(), static_cast<size_t>(clusters_)));
    const auto others = all.subspan(centers.size());
    const MaskedRows masked = masked_rows(letters_, centers, counts_, options_.masked, seed);
    const std::vector<int32_t> nearest = nearest_clusters(masked.letters, letters_, others);
    fill_clusters(pass, centers, masked,
                  sum_clusters(masked.letters, letters_, alignment_, {centers, others, nearest}, range_));
    const auto wanted = static_cast<size_t>(std::min(options_.extra, extra_));
    fill_extra(pass, others.first(std::min(others.size(), wanted)));
  }

  void fill_clusters(int64_t pass, std::span<const int64_t> centers, const MaskedRows& masked,
                     const ClusterSums& sums) {
    for (size_t center = 0; center < centers.size(); ++center) {
      const int64_t place = (pass * clusters_ + static_cast<int64_t>(center)) * range_.size;
      float* features = fields_.msa_feat.mutable_data_ptr<float>() + place * kAlignmentFeatures;
      float* mask = fields_.msa_mask.mutable_data_ptr<float>() + place;
      float* is_masked = fields_.bert_mask.mutable_data_ptr<float>() + place;
      int64_t* truth = fields_.true_msa.mutable_data_ptr<int64_t>() + place;
      for (int64_t j = 0; j < range_.size; ++j, features += kAlignmentFeatures) {
        const int64_t column = range_.first + j;
        const auto sum = center * static_cast<size_t>(range_.size) + static_cast<size_t>(j);
        const int32_t deletions = alignment_.deletion(centers[center], column);
        const double members = sums.members[center];
        features[masked.letters.row(static_cast<int64_t>(center))[column]] = 1;
        features[kHasDeletion] = deletions > 0 ? 1 : 0;
        features[kDeletions] = value_of_deletions(deletions);
        for (int64_t type = 0; type < kLetterTypes; ++type)
          features[kProfile + type] =
              static_cast<float>(sums.letters[sum * kLetterTypes + static_cast<size_t>(type)] / members);
        features[kMeanDeletions] = value_of_deletions(static_cast<double>(sums.deletions[sum]) / members);
        mask[j] = 1;
        is_masked[j] = masked.is_masked[center * static_cast<size_t>(letters_.columns) + static_cast<size_t>(column)];
        truth[j] = letters_.row(centers[center])[column];
      }
    }
  }

  void fill_extra(int64_t pass, std::span<const int64_t> rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t place = (pass * extra_ + static_cast<int64_t>(i)) * range_.size;
      int64_t* letters = fields_.extra_msa.mutable_data_ptr<int64_t>() + place;
      float* mask = fields_.extra_msa_mask.mutable_data_ptr<float>() + place;
      float* has_deletion = fields_.extra_has_deletion.mutable_data_ptr<float>() + place;
      float* value = fields_.extra_deletion_value.mutable_data_ptr<float>() + place;
      for (int64_t j = 0; j < range_.size; ++j) {
        const int64_t column = range_.first + j;
        const int32_t deletions = alignment_.deletion(rows[i], column);
        letters[j] = letters_.row(rows[i])[column];
        mask[j] = 1;
        has_deletion[j] = deletions > 0 ? 1 : 0;
        value[j] = value_of_deletions(deletions);
      }
    }
  }

  const FoldingChain& chain_;
  const protein::Alignment& alignment_;
  const FeatureOptions& options_;
  ColumnRange range_;
  LetterRows letters_;
  std::vector<int32_t> counts_;
  int64_t clusters_, extra_;
  PassFields fields_;
};

void add_sequence(tensor::Batch& batch, const std::string& sequence, const ColumnRange& range) {
  const at::Tensor types = at::empty({1, range.size}, at::kLong);
  for (int64_t i = 0; i < range.size; ++i)
    types.mutable_data_ptr<int64_t>()[i] = protein::type_of_letter(sequence[static_cast<size_t>(range.first + i)]);
  batch.add("aatype", feature_of(types));
  batch.add("residue_index", feature_of(at::arange(range.first, range.first + range.size, at::kLong).unsqueeze(0)));
  batch.add("seq_mask", feature_of(at::ones({1, range.size}, at::kFloat)));
  batch.add("target_feat", feature_of(target_features(types)));
}

std::vector<AlignedTemplate> chosen_templates(const FoldingChain& chain, const FeatureOptions& options) {
  const auto available = static_cast<int64_t>(chain.templates.size());
  const uint64_t seed = derive_seed(derive_seed(derive_seed(options.seed, "templates"), chain.name), "count");
  std::vector<int64_t> order(chain.templates.size());
  int64_t count = std::min(available, options.templates);
  if (options.draws_templates) {
    order = drawn_order(available, seed);
    const auto drawn = static_cast<int64_t>(uniform_of_seed(seed) * static_cast<double>(available + 1));
    count = std::min(count, drawn);
  } else {
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  }
  std::vector<AlignedTemplate> chosen;
  for (int64_t i = 0; i < count; ++i)
    chosen.push_back(
        aligned_template(chain.sequence, chain.templates[static_cast<size_t>(order[static_cast<size_t>(i)])]));
  return chosen;
}

}  // namespace

at::Tensor target_features(const at::Tensor& types) {
  // The first feature is the break of a chain, which whole chains do not have.
  return at::constant_pad_nd(at::one_hot(types, protein::kTableTypes).to(at::kFloat), {1, 0});
}

tensor::Batch make_features(const FoldingChain& chain, const FeatureOptions& options) {
  check_feature_options(chain, options);
  const protein::Alignment alone =
      chain.alignment.rows.empty() ? protein::single_row(chain.sequence, chain.name) : protein::Alignment{};
  const protein::Alignment& alignment = chain.alignment.rows.empty() ? alone : chain.alignment;
  protein::require_query(alignment, chain.sequence, chain.place.empty() ? chain.name : chain.place);
  ColumnRange range = options.crop;
  if (range.size == 0) range.size = static_cast<int64_t>(chain.sequence.size()) - range.first;
  tensor::Batch batch;
  add_sequence(batch, chain.sequence, range);
  const PassFields fields = AlignmentFeatures(chain, alignment, options, range).make();
  const std::pair<const char*, at::Tensor> named[] = {{"msa_feat", fields.msa_feat},
                                                      {"msa_mask", fields.msa_mask},
                                                      {"true_msa", fields.true_msa},
                                                      {"bert_mask", fields.bert_mask},
                                                      {"extra_msa", fields.extra_msa},
                                                      {"extra_msa_mask", fields.extra_msa_mask},
                                                      {"extra_has_deletion", fields.extra_has_deletion},
                                                      {"extra_deletion_value", fields.extra_deletion_value}};
  for (const auto& [name, values] : named) batch.add(name, feature_of(values.unsqueeze(0)));
  if (options.templates > 0) add_templates(batch, chosen_templates(chain, options), range);
  return batch;
}

}  // namespace colossal::data
