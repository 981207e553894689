#include "colossal/fold/folder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/data/folding/pass_fields.h"
#include "colossal/fold/pair_heads.h"
#include "colossal/memory/account.h"
#include "colossal/memory/device_meter.h"
#include "colossal/models/folding/confidence.h"
#include "colossal/nn/batch_step.h"
#include "colossal/protein/residues.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::fold {
namespace {

constexpr int64_t kRowsAtOnce = 64;  // residues whose LDDT logits, or rows whose distances, exist at a time

/// Counts the bytes of activations and buffers from its construction on.
class ActivationMeter {
 public:
  explicit ActivationMeter(at::Device device) : device_(device) {
    if (!tensor::is_accelerator(device)) {
      account_.emplace();
      kind_.emplace(memory::Kind::Activations);
      return;
    }
    memory::restart_peak(device);
    resident_ = memory::peak_bytes(device);
  }
  int64_t peak() const {
    if (!account_) return memory::peak_bytes(device_) - resident_;
    const memory::Account::Usage usage = account_->usage();
    return usage.peak_of(memory::Kind::Activations) + usage.peak_of(memory::Kind::Buffers);
  }

 private:
  at::Device device_;
  int64_t resident_ = 0;
  std::optional<memory::Account> account_{};
  std::optional<memory::KindScope> kind_{};  // ends before the account
};

/// Returns the mean change of the distances between points [n, 3], over pairs of two points.
double mean_change(const at::Tensor& before, const at::Tensor& after) {
  const int64_t count = after.size(0);
  if (count < 2) return 0;
  const auto distances = [](const at::Tensor& all, int64_t first, int64_t rows) {
    return (all.narrow(0, first, rows).unsqueeze(1) - all.unsqueeze(0)).square().sum(-1).sqrt();
  };
  at::Tensor sum = at::zeros({}, after.options().dtype(at::kDouble));
  for (int64_t first = 0; first < count; first += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, count - first);
    sum += (distances(after, first, rows) - distances(before, first, rows)).abs_().sum().to(at::kDouble);
  }
  return sum.item<double>() / static_cast<double>(count * (count - 1));
}

/// Returns the atoms [N, 37] that the residues of the chains have.
at::Tensor atoms_of(const std::vector<std::string>& chains) {
  std::vector<int64_t> exists;
  for (const std::string& chain : chains)
    for (const char letter : chain)
      for (const bool has :
           protein::residue_tables().atom37_exists[static_cast<size_t>(protein::type_of_letter(letter))])
        exists.push_back(has);
  return at::tensor(exists, at::kLong).view({-1, protein::kAtom37}).to(at::kBool);
}

}  // namespace

/// A chain while it is folded. Members after `recycled` are set on ranks of the last stage.
struct Folder::Chain {
  const FoldInput& input;
  const FoldOptions& options;
  int64_t passes;        // at most
  at::Tensor atom_mask;  // [N, 37]
  tensor::Batch row;     // fields of all passes
  FoldedPass done{};
  bool is_last = false;
  models::Recycled recycled{};  // on the stage that reads it before a pass; handed over after it

  at::Tensor ca{};  // [n, 3] of residues that have one
  at::Tensor positions{}, atom_plddt{}, errors{};
  double ptm = 0;
};

Folder::Folder(distributed::DistributedModel& model, comm::Mesh& mesh) : model_(model), mesh_(mesh) {
  models::folding_of(shape());
  require(model.parameters().options().dtype != at::kHalf, "fold",
          "precision must be bf16, fp32 or fp64, because positions and products of pairs exceed the range of fp16: got "
          "weights in fp16; set --precision bf16");
}

const models::ModelShape& Folder::shape() const { return model_.model().shape; }

bool Folder::predicts_errors() const { return bool(model_.model().folding->errors); }

Folded Folder::fold(const FoldInput& input, const FoldOptions& options,
                    const std::function<void(const FoldedPass&)>& each_pass) {
  options.check();
  const at::NoGradGuard no_grad;
  const Stopwatch watch;
  const nn::Parameters::Options& weights = model_.parameters().options();
  Chain chain{
      .input = input, .options = options, .passes = options.passes.value_or(models::folding_of(shape()).passes)};
  chain.atom_mask = atoms_of(input.sequence.chains);
  distributed::check_residues(model_.model().folding->ranks->size(), input.sizes.residues);
  comm::agree(mesh_.all(), at::kCPU, [&] { chain.row = input.fields(chain.passes, options.seed); });
  const ActivationMeter meter(weights.device);
  while (!chain.is_last) {
    run_pass(chain);
    if (each_pass) each_pass(chain.done);
    if (!chain.is_last) hand_over(chain);
  }
  Folded folded = gathered(chain);
  const int64_t residues = input.sizes.residues;
  folded.pair_bytes =
      residues * residues * models::folding_of(shape()).pair * static_cast<int64_t>(c10::elementSize(weights.dtype));
  folded.peak_bytes = peak_of_ranks(meter.peak());
  folded.seconds = watch.seconds();
  return folded;
}

tensor::Batch Folder::fields_of_pass(const Chain& chain) const {
  const nn::Parameters::Options& weights = model_.parameters().options();
  return data::batch_of_pass(chain.row, chain.done.pass).map([&](const tensor::Field& field) {
    const bool has_numbers = at::isFloatingType(field.tensor.scalar_type());
    // copies, because models may overwrite fields
    return field.tensor.to(weights.device, has_numbers ? weights.dtype : field.tensor.scalar_type(),
                           /*non_blocking=*/false, /*copy=*/true);
  });
}

/// Returns the rank, within the pipeline, whose layers read the recycled fields.
int Folder::reader() const {
  const std::vector<int64_t>& cuts = model_.cuts();
  const int block = model_.model().folding->reader;
  const int64_t stage = block < 0 ? 0 : std::upper_bound(cuts.begin(), cuts.end(), block) - cuts.begin() - 1;
  return model_.executor().schedule().placement.rank_of(0, static_cast<int>(stage));
}

void Folder::run_pass(Chain& chain) {
  tensor::Batch batch = fields_of_pass(chain);
  if (mesh_.group("pipeline").rank() != reader()) {
    // only one stage reads these fields; the others need their sizes
    const models::FoldingSizes sizes = models::folding_of(shape());
    const at::Tensor zero = at::zeros({1}, batch.at("seq_mask").options());
    const int64_t n = chain.input.sizes.residues;
    chain.recycled.single = zero.expand({1, n, sizes.single});
    chain.recycled.pair = zero.expand({1, model_.model().folding->ranks->own(n).size, n, sizes.pair});
    chain.recycled.beta = zero.expand({1, n, 3});
  }
  batch = models::with_recycled(batch, std::exchange(chain.recycled, {}), shape(), model_.model().folding->ranks.get());
  ++chain.done.pass;
  at::Tensor status;
  model_.forward({nn::step_of(std::move(batch))}, [&](int, const models::States& end, const nn::ForwardContext& step) {
    take_results(chain, end, *step.batch);
    status = at::tensor({chain.done.plddt, chain.done.change, chain.is_last ? 1. : 0.}, at::kDouble);
    return at::zeros({1}, chain.positions.options());
  });
  status = from_last_stage(status, {3}, at::kDouble).cpu();
  chain.done.plddt = status[0].item<double>();
  chain.done.change = status[1].item<double>();
  chain.is_last = status[2].item<double>() != 0;
}

void Folder::take_results(Chain& chain, const models::States& end, const tensor::Batch& batch) const {
  const models::FoldingHeads& heads = *model_.model().folding;
  const at::Tensor& types = batch.at("aatype");
  const at::Tensor kept = at::tensor(chain.input.kept, at::kLong).to(types.device());
  const at::Tensor mask = chain.atom_mask.to(types.device()), has_ca = mask.select(1, protein::kAtomCa);
  chain.positions = models::folded_atoms(heads, end, types).positions37[0].index_select(0, kept);
  chain.atom_plddt = lddt_by_rows(heads, end[static_cast<size_t>(heads.structure)], kRowsAtOnce)
                         .index_select(0, kept)
                         .expand({-1, protein::kAtom37})
                         .masked_fill(mask.logical_not(), 0);
  chain.done.plddt =
      chain.atom_plddt.select(1, protein::kAtomCa).to(at::kDouble).sum().item<double>() / has_ca.sum().item<double>();
  const at::Tensor ca = chain.positions.select(1, protein::kAtomCa).index_select(0, has_ca.nonzero().flatten());
  const at::Tensor before = std::exchange(chain.ca, ca);
  chain.done.change = before.defined() ? mean_change(before, ca) : 0;
  const bool is_still = before.defined() && chain.done.change < chain.options.tolerance;
  chain.is_last = chain.done.pass == chain.passes || is_still;
  if (!chain.is_last)
    chain.recycled = models::recycled(heads, end, batch);
  else if (heads.errors)
    take_errors(chain, end[static_cast<size_t>(heads.pair)]);
}

void Folder::take_errors(Chain& chain, const at::Tensor& pairs) const {
  const ErrorsOfPairs found =
      errors_by_rows(*model_.model().folding, pairs, chain.input.kept, chain.options.keeps_errors);
  chain.ptm = found.ptm.item<double>();
  chain.errors = found.errors;
}

void Folder::hand_over(Chain& chain) {
  comm::Group& stages = mesh_.group("pipeline");
  const schedule::Placement& place = model_.executor().schedule().placement;
  const int reads = reader(), last = place.rank_of(0, place.stages() - 1);
  const models::FoldingSizes sizes = models::folding_of(shape());
  const int64_t n = chain.input.sizes.residues;
  const nn::Parameters::Options& weights = model_.parameters().options();
  if (model_.model().folding->language >= 0)  // blocks of all stages look whether it is there
    chain.recycled.language = from_last_stage(chain.recycled.language, {1, n, sizes.single}, weights.dtype);
  if (reads == last) return;
  const auto pass_on = [&](at::Tensor& value, at::IntArrayRef wanted, at::ScalarType dtype) {
    if (stages.rank() == last) {
      value = value.to(dtype).contiguous();
      stages.send(value, reads).wait();
      value = at::Tensor();
    } else if (stages.rank() == reads) {
      value = at::empty(wanted, at::TensorOptions(dtype).device(weights.device));
      stages.recv(value, last).wait();
    }
  };
  pass_on(chain.recycled.single, {1, n, sizes.single}, weights.dtype);
  pass_on(chain.recycled.pair, {1, model_.model().folding->ranks->own(n).size, n, sizes.pair}, weights.dtype);
  pass_on(chain.recycled.beta, {1, n, 3}, at::promote_types(weights.dtype, at::kFloat));
}

at::Tensor Folder::from_last_stage(const at::Tensor& value, at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::TensorOptions options = at::TensorOptions(dtype).device(model_.parameters().options().device);
  if (mesh_.group("pipeline").size() == 1) return value;
  return model_.at_end([&](const auto&) { return value.to(options); }, at::empty(sizes, options));
}

Folded Folder::gathered(Chain& chain) {
  const Sequence& sequence = chain.input.sequence;
  const auto n = static_cast<int64_t>(chain.input.kept.size());
  const at::ScalarType exact = at::promote_types(model_.parameters().options().dtype, at::kFloat);
  Folded folded{.name = sequence.name, .chains = sequence.chains, .plddt = chain.done.plddt, .passes = chain.done.pass};
  folded.positions = from_last_stage(chain.positions, {n, protein::kAtom37, 3}, exact).cpu();
  folded.atom_plddt = from_last_stage(chain.atom_plddt, {n, protein::kAtom37}, exact).cpu();
  folded.atom_mask = chain.atom_mask;
  if (!predicts_errors()) return folded;
  folded.ptm = from_last_stage(at::tensor({chain.ptm}, at::kDouble), {1}, at::kDouble).item<double>();
  if (chain.options.keeps_errors) folded.errors = from_last_stage(chain.errors, {n, n}, exact).cpu();
  return folded;
}

int64_t Folder::peak_of_ranks(int64_t own) {
  if (mesh_.all().size() == 1) return own;
  at::Tensor most = at::tensor({own}, at::kLong).to(model_.parameters().options().device);
  mesh_.all().all_reduce(most, comm::Reduce::Max).wait();
  return most.item<int64_t>();
}

}  // namespace colossal::fold
