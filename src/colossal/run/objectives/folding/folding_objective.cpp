#include "colossal/run/objectives/folding/folding_objective.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/run_folder.h"
#include "colossal/data/folding/chain_samples.h"
#include "colossal/data/folding/drawn_fold_samples.h"
#include "colossal/data/folding/pass_fields.h"
#include "colossal/protein/residues.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

constexpr char kDrawnFolds[] = "builtin-folds";

bool has_term(const FoldingWeights& w) {
  for (const double weight : {w.fape, w.side_chains, w.chi, w.distogram, w.plddt, w.resolved, w.violation})
    if (weight > 0) return true;
  return w.masked_msa != 0 || w.pae != 0;
}

}  // namespace

FoldingObjective::FoldingObjective(const Config& config, const OwnTables& tables, const models::ModelShape& shape)
    : keys_(tables.as<FoldingKeys>(kFolding)), shape_(shape), sizes_(models::folding_of(shape)) {
  require(has_term(keys_.weights), kFolding, "a weight of folding.weights must be above 0: got 0 for all; set fape");
  const int64_t stages = config.parallel.pipeline.size;
  require(keys_.clip_sample == 0 || stages == 1, kFolding,
          "clip_sample needs parallel.pipeline.size = 1, because each rank must have the whole gradient of a chain: "
          "got ",
          stages, "; set training.clip in place of folding.clip_sample");
}

data::FoldingRowSizes FoldingObjective::row_sizes(int64_t passes) const {
  return {.residues = keys_.crop,
          .clusters = keys_.clusters,
          .extra = keys_.extra,
          .passes = passes,
          .has_alignments = sizes_.reads_alignments,
          .templates = sizes_.templates};
}

OpenedData FoldingObjective::open(const DataRequest& request) const {
  const Config& config = request.config;
  check_unused_data_keys(config.data, {.images = true});
  if (config.data.path != kDrawnFolds) return open_real_chains(config);
  data::DrawnFoldOptions options{.sizes = row_sizes(keys_.passes), .masked = keys_.masked};
  OpenedData opened{.training = std::make_shared<data::DrawnFoldSamples>(options),
                    .threads = static_cast<int>(config.data.threads)};
  options.held_out = true;
  if (evaluates(config)) opened.held_out = std::make_shared<data::DrawnFoldSamples>(options);
  return opened;
}

OpenedData FoldingObjective::open_real_chains(const Config& config) const {
  // Rows that training leaves out of an alignment, and templates (Jumper et al. 2021, supplement 1.2.6 and 1.2.2).
  const data::FeatureOptions features{.clusters = keys_.clusters,
                                      .extra = keys_.extra,
                                      .passes = keys_.passes,
                                      .masked = keys_.masked,
                                      .deleted = {.blocks = 5, .share = .3},
                                      .templates = sizes_.templates,
                                      .draws_templates = true};
  data::ChainData chains = data::open_chains(
      config.data.path, {.features = features,
                         .crop = keys_.crop,
                         .reads_alignments = sizes_.reads_alignments,
                         .held_out = evaluates(config) ? config.data.held_out : 0,
                         .folder = {on_error_of(config.data), RunFolder(config.run.folder).chains()}});
  return {.training = std::move(chains.training),
          .held_out = std::move(chains.held_out),
          .notices = std::move(chains.notices),
          .facts = std::move(chains.facts),
          .threads = static_cast<int>(config.data.threads)};
}

tensor::Batch FoldingObjective::example(int64_t rows) const {
  return models::with_recycled(data::make_folding_rows(rows, row_sizes(0), at::kMeta), {}, shape_);
}

std::vector<std::string> FoldingObjective::added_fields() const {
  return {"recycled_single", "recycled_pair", "recycled_beta"};
}

tensor::Batch FoldingObjective::with_added(tensor::Batch example) const {
  return models::with_recycled(data::batch_of_pass(example, 0), {}, shape_);
}

std::string FoldingObjective::missing_from(const models::Model& model) const {
  return model.folding ? missing_head(keys_.weights, *model.folding) : "heads that fold";
}

void FoldingObjective::check(const tensor::Batch& batch) const {
  const at::Tensor &types = batch.at("aatype"), &atoms = batch.at("all_atom_positions");
  require(types.dim() == 2, "data", "aatype must be [B, N]: got ", types.sizes());
  const int64_t rows = types.size(0), residues = types.size(1);
  const auto require_sizes = [](const char* name, const at::Tensor& field, const std::vector<int64_t>& sizes) {
    require(field.sizes() == at::IntArrayRef(sizes), "data", name, " must be ", at::IntArrayRef(sizes), ": got ",
            field.sizes());
  };
  require_sizes("seq_mask", batch.at("seq_mask"), {rows, residues});
  require_sizes("residue_index", batch.at("residue_index"), {rows, residues});
  require_sizes("all_atom_positions", atoms, {rows, residues, protein::kAtom37, 3});
  require_sizes("all_atom_mask", batch.at("all_atom_mask"), {rows, residues, protein::kAtom37});
  require_sizes("resolution", batch.at("resolution"), {rows});
  require_sizes(data::kChainCounts, batch.at(data::kChainCounts), {rows});
  require(data::passes_of(batch) == 0, "data", "a batch must be of one pass: got one of ", data::passes_of(batch),
          "; select one with data::batch_of_pass()");
}

int64_t FoldingObjective::tokens(const tensor::Batch& batch, const models::ModelShape&) const {
  return batch.at("aatype").numel();
}

double FoldingObjective::weight(const tensor::Batch& batch) const {
  const at::Tensor& counts = batch.at(data::kChainCounts);
  return counts.is_meta() ? static_cast<double>(batch.rows()) : counts.sum().item<double>();
}

MeasuredFolds FoldingObjective::measure(const models::Model& model, const models::States& end,
                                        const nn::ForwardContext& step) const {
  const FoldingTerms terms =
      folding_terms(*model.folding, end, *step.batch, {.weights = keys_.weights, .clamp = keys_.clamp});
  const at::Tensor counts = step.batch->at(data::kChainCounts)
                                .to(terms.losses.device(), /*non_blocking=*/true)
                                .to(terms.losses.scalar_type());
  return {.loss = (terms.losses * counts).sum(),
          .sums = at::stack({(terms.fape * counts).sum(), (terms.lddt_ca * counts).sum()}).detach()};
}

at::Tensor FoldingObjective::loss(const models::Model& model, const models::States& end,
                                  const nn::ForwardContext& step) const {
  return measure(model, end, step).loss;
}

at::Tensor FoldingObjective::evaluate(const models::Model& model, const models::States& end,
                                      const nn::ForwardContext& step) const {
  const MeasuredFolds measured = measure(model, end, step);
  return at::stack({measured.loss, measured.sums[0]});
}

std::vector<Metric> FoldingObjective::metrics(const std::vector<double>& sums, double weight) const {
  std::vector<Metric> rows = Objective::metrics(sums, weight);
  rows.push_back({.name = "eval_fape",
                  .value = mean_of(sums.at(1), weight),
                  .plot = "Error of aligned CA",
                  .legend = "held-out",
                  .line = "held-out fape %.3f"});
  return rows;
}

std::vector<Metric> FoldingObjective::step_metrics(const std::vector<double>& sums, double weight) const {
  return {{.name = "fape",
           .value = mean_of(sums.at(0), weight),
           .plot = "Error of aligned CA",
           .legend = "training",
           .line = "fape %.3f"},
          {.name = "lddt_ca", .value = mean_of(sums.at(1), weight), .plot = "LDDT of CA", .legend = "training"}};
}

std::unique_ptr<Objective> make_folding(const Config& config, const OwnTables& tables,
                                        const models::ModelShape& shape) {
  return std::make_unique<FoldingObjective>(config, tables, shape);
}

}  // namespace colossal::run
