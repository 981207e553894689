#include "colossal/parallel/sequence/config.h"

#include "colossal/base/error.h"
#include "colossal/parallel/sequence/modes.h"

namespace colossal::parallel {
namespace {

std::vector<comm::Mesh::Axis> one_axis(const SequenceConfig& config) {
  return {comm::Mesh::sequence("sequence", static_cast<int>(config.size))};
}

}  // namespace

void SequenceConfig::fields(Fields& f) {
  f.integer("size", size, "ranks", "among which the tokens of each row are dealt out, zigzag: contexts grow with it", 1,
            65536);
  f.choice("mode", mode, sequence_mode_names(),
           "how queries meet the keys of other ranks: docs/sequence-parallel.md says when to take which");
  f.integer(
      "ulysses", ulysses, "ranks",
      "usp: neighbours that exchange heads, as those of a node; size / ulysses such groups pass keys on in a ring", 1,
      65536);
}

std::vector<comm::Mesh::Axis> SequenceGather::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceUlysses::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceRing::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceSelfAttention::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceUsp::axes(const SequenceConfig& c) {
  require(c.size % c.ulysses == 0, "parallel", "sequence.ulysses must divide sequence.size: got ", c.ulysses, " of ",
          c.size);
  return {comm::Mesh::sequence("ring", static_cast<int>(c.size / c.ulysses)),
          comm::Mesh::sequence("ulysses", static_cast<int>(c.ulysses))};
}

std::vector<std::string> sequence_mode_names() {
  std::vector<std::string> names;
  for_each_sequence_mode([&](auto mode) { names.emplace_back(mode.name); });
  return names;
}

std::vector<comm::Mesh::Axis> sequence_axes(const SequenceConfig& config) {
  require(config.mode == SequenceUsp::name || config.ulysses == 1, "parallel",
          "sequence.ulysses belongs to mode usp: got ", config.ulysses, " with mode ", config.mode);
  return with_sequence_mode(config, [&](auto mode) { return mode.axes(config); });
}

void check_heads(const SequenceConfig& config, int64_t heads) {
  sequence_axes(config);  // refuses what no mode can be made of
  const int64_t ranks = with_sequence_mode(config, [&](auto mode) { return mode.head_parts(config); });
  require(heads % ranks == 0, "parallel", "the ", heads, " attention heads of a rank must divide by the ", ranks,
          " ranks that exchange tokens for heads (sequence.mode ulysses, usp): take another number of ranks, or mode "
          "ring or gather, which take any");
}

void check_sequence(const SequenceConfig& config, int64_t tokens, int64_t shares) {
  sequence_axes(config);  // refuses what no mode can be made of
  if (config.size == 1) return;
  require(tokens >= config.size, "parallel", "each of the ", config.size,
          " ranks of parallel.sequence must have a token of each row: got rows of ", tokens,
          "; take longer ones (data.sequence), or fewer ranks");
  const int64_t runs = 2 * config.size * shares, nearest = std::max<int64_t>(1, (tokens + runs / 2) / runs) * runs;
  require(shares == 1 || tokens % runs == 0, "parallel", "with tensor.sequence the tokens of a row must divide by 2 * ",
          config.size, " (sequence.size) * ", shares, " (tensor.size): got ", tokens, "; nearest: ", nearest);
}

}  // namespace colossal::parallel
