#include "colossal/data/folding/chain_samples.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/data/folding/folding_rows.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

constexpr int64_t kAtomSlots = protein::kAtom37;
constexpr int kWindows = 20;  // draws of a window before one without a placed residue is taken

bool is_placed(const protein::StructureResidue& residue) {
  int backbone = 0;
  for (const protein::StructureAtom& atom : residue.atoms) backbone += atom.atom <= protein::kAtomC ? 1 : 0;
  return residue.type != protein::kUnknownType && backbone == 3;
}

/// Returns the residues that a sample shows.
ColumnRange drawn_window(const protein::StructureChain& chain, int64_t crop, uint64_t seed) {
  const auto residues = static_cast<int64_t>(chain.residues.size());
  if (residues <= crop) return {0, residues};
  ColumnRange window{0, crop};
  for (uint64_t i = 0; i < kWindows; ++i) {
    const double draw = uniform_of_seed(derive_seed(seed, i));
    window.first = std::min(static_cast<int64_t>(draw * static_cast<double>(residues - crop + 1)), residues - crop);
    const auto begin = chain.residues.begin() + window.first;
    if (std::any_of(begin, begin + crop, is_placed)) break;
  }
  return window;
}

/// Returns the atoms of the residues in a window, without those of unknown residues.
TrueAtoms atoms_of_window(const protein::StructureChain& chain, const ColumnRange& window, double resolution) {
  TrueAtoms atoms{.positions = at::zeros({window.size, kAtomSlots, 3}, at::kFloat),
                  .mask = at::zeros({window.size, kAtomSlots}, at::kFloat),
                  .resolution = resolution};
  for (int64_t i = 0; i < window.size; ++i) {
    const protein::StructureResidue& residue = chain.residues[static_cast<size_t>(window.first + i)];
    if (residue.type == protein::kUnknownType) continue;
    for (const protein::StructureAtom& atom : residue.atoms) {
      const int64_t place = i * kAtomSlots + atom.atom;
      float* point = atoms.positions.mutable_data_ptr<float>() + 3 * place;
      point[0] = static_cast<float>(atom.position.x);
      point[1] = static_cast<float>(atom.position.y);
      point[2] = static_cast<float>(atom.position.z);
      atoms.mask.mutable_data_ptr<float>()[place] = 1;
    }
  }
  return atoms;
}

}  // namespace

ChainSamples::ChainSamples(std::shared_ptr<const ChainFolder> folder, std::vector<int64_t> chains,
                           ChainSampleOptions options)
    : folder_(std::move(folder)), chains_(std::move(chains)), options_(options) {
  require(!chains_.empty(), "data", "there must be chains in ", folder_->path, ": got none; change data.held_out");
  require(options_.crop >= 1, "data", "a sample must have at least 1 residue: got crop ", options_.crop);
  if (!options_.reads_alignments) options_.features.clusters = 1, options_.features.extra = 0;
  if (!options_.reads_alignments) options_.features.passes = 1;
}

tensor::Batch ChainSamples::make(int64_t rows) const {
  const FeatureOptions& features = options_.features;
  return make_folding_rows(rows, {.residues = options_.crop,
                                  .clusters = features.clusters,
                                  .extra = std::max<int64_t>(features.extra, 1),
                                  .passes = features.passes,
                                  .has_alignments = options_.reads_alignments,
                                  .templates = features.templates});
}

tensor::Batch ChainSamples::sample(int64_t index, uint64_t seed) const {
  const int64_t chain = chains_[static_cast<size_t>(index)];
  const ChainContents contents = folder_->read(chain, options_.reads_alignments, options_.features.templates > 0);
  const KnownChain& known = folder_->chains[static_cast<size_t>(chain)];
  tell(contents.notices);
  FeatureOptions features = options_.features;
  features.seed = options_.is_held_out ? derive_seed(0, "held out") : seed;
  features.crop =
      drawn_window(contents.structure, options_.crop, derive_seed(derive_seed(features.seed, "crop"), known.name));
  tensor::Batch batch = make_features(contents.known, features);
  add_true_atoms(batch, atoms_of_window(contents.structure, features.crop, known.resolution));
  return batch;
}

void ChainSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  for (int64_t tried = 0;; ++tried, index = (index + 1) % count()) {
    try {
      fill_folding_row(sample(index, seed), batch, row);
      return;
    } catch (const Error& error) {
      if (folder_->options.on_error == OnError::Refuse)
        throw Error("data", concat(error.message(), "; to train without it set data.on_error = \"skip\""));
      if (tried + 1 >= count()) throw;
      const std::lock_guard lock(mutex_);
      skipped_.add(error.message());
    }
  }
}

nlohmann::json ChainSamples::traits() const {
  Checksum sum;
  for (int64_t index : chains_) {
    const KnownChain& chain = folder_->chains[static_cast<size_t>(index)];
    const std::string line = concat(chain.name, "\n", chain.sequence, "\n", chain.resolution, "\n");
    sum.update(line.data(), line.size());
  }
  const FeatureOptions& f = options_.features;
  nlohmann::json traits{{"chains", sum.hex()}, {"crop", options_.crop}, {"passes", f.passes}};
  if (options_.reads_alignments)
    traits.update({{"clusters", f.clusters},
                   {"extra", f.extra},
                   {"masked", f.masked},
                   {"deleted_blocks", f.deleted.blocks},
                   {"deleted_share", f.deleted.share}});
  if (f.templates > 0) traits.update({{"templates", f.templates}, {"draws_templates", f.draws_templates}});
  return traits;
}

void ChainSamples::tell(const std::vector<std::string>& notices) const {
  const std::lock_guard lock(mutex_);
  for (const std::string& notice : notices)
    if (told_.insert(notice).second) notices_.push_back(notice);
}

std::vector<std::string> ChainSamples::take_notices() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all = std::exchange(notices_, {});
  for (std::string& notice : skipped_.take_notices()) all.push_back(std::move(notice));
  return all;
}

ChainData open_chains(const std::string& path, const ChainDataOptions& options) {
  ChainData data;
  auto folder = std::make_shared<ChainFolder>(ChainFolder::open(path, options.folder));
  data.notices = std::exchange(folder->notices, {});
  auto [training, held_out] = folder->split(options.held_out);
  data.facts.push_back(
      concat(path, ": ", folder->chains.size(), " chains, of which ", held_out.size(), " are held out"));
  require(!training.empty(), "data", "all ", held_out.size(), " chains of ", path,
          " are held out; lower data.held_out or add chains");
  ChainSampleOptions samples{options.features, options.crop, options.reads_alignments, false};
  data.training = std::make_shared<ChainSamples>(folder, std::move(training), samples);
  if (options.held_out <= 0) return data;
  require(!held_out.empty(), "data", "none of the ", folder->chains.size(), " chains of ", path,
          " is held out; raise data.held_out, add chains, or set training.evaluate_every = 0");
  samples.is_held_out = true;
  samples.features.deleted = {};
  samples.features.draws_templates = false;
  data.held_out = std::make_shared<ChainSamples>(folder, std::move(held_out), samples);
  return data;
}

}  // namespace colossal::data
