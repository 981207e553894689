// Samples of real chains, for training and evaluation.
//
//   const data::ChainData opened = data::open_chains("chains", {.features = features, .crop = 256});
//   const tensor::Batch batch = opened.training->make(8);
//   opened.training->fill(0, seed, batch, 0);
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/folding/chain_folder.h"
#include "colossal/data/folding/features.h"

namespace colossal::data {

/// What samples have of each chain.
struct ChainSampleOptions {
  FeatureOptions features{};     ///< of a sample; `seed` and `crop` are those of each sample
  int64_t crop = 256;            ///< residues of a sample; shorter chains are padded
  bool reads_alignments = true;  ///< false = there are no fields of alignments, and their files are not read
  bool is_held_out = false;      ///< true = what is drawn follows from the chain alone
};

/// Samples of chains. Sample i is a window of at most `crop` residues of chain i, padded and masked to `crop` residues,
/// and to the clusters, extra rows and templates of the options. It has the fields of make_folding_rows() with passes.
/// Labels of missing atoms, those of unknown residues and padding are 0. A window of a longer chain is drawn anew, at
/// most 20 times, until it has a residue with N, CA and C. Draws are functions of (seed of the sample, chain, pass)
/// alone.
///
/// Errors: the constructor throws Error("data") if there is no chain or `crop` is below 1. fill() throws the errors of
///         ChainFolder::read() and make_features(); with OnError::Skip the next chain that can be read replaces one
///         that cannot, and fill() throws only if there is none.
/// Memory: names and sequences, and the files of the chains that are being filled.
class ChainSamples final : public Samples {
 public:
  ChainSamples(std::shared_ptr<const ChainFolder> folder, std::vector<int64_t> chains, ChainSampleOptions options);
  int64_t count() const override { return static_cast<int64_t>(chains_.size()); }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// Returns the options and a checksum of the names, sequences and resolutions.
  nlohmann::json traits() const override;
  std::vector<std::string> take_notices() const override;

 private:
  tensor::Batch sample(int64_t index, uint64_t seed) const;
  void tell(const std::vector<std::string>& notices) const;

  std::shared_ptr<const ChainFolder> folder_;
  std::vector<int64_t> chains_;
  ChainSampleOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  mutable SkippedRecords skipped_;
  mutable std::set<std::string> told_;
  mutable std::vector<std::string> notices_;
};

/// Options of open_chains().
struct ChainDataOptions {
  /// Of training. Held-out chains have the same, but no deleted rows, and the best templates.
  FeatureOptions features{};
  int64_t crop = 256;
  bool reads_alignments = true;
  double held_out = .05;  ///< probability that a chain is held out; 0 = none
  ChainFolderOptions folder{};
};

/// The samples of a folder.
struct ChainData {
  std::shared_ptr<const Samples> training, held_out;  ///< held_out: null if ChainDataOptions::held_out is 0
  std::vector<std::string> notices, facts;            ///< lines for the user
};

/// Opens a folder of chains. Errors: ChainFolder::open(); Error("data") if no chain is left to train with, or none is
/// held out although some should.
ChainData open_chains(const std::string& path, const ChainDataOptions& options);

}  // namespace colossal::data
