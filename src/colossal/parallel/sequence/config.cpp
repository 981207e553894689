#include "colossal/parallel/sequence/config.h"

#include "colossal/base/error.h"
#include "colossal/parallel/sequence/modes.h"

namespace colossal::parallel {
namespace {

std::vector<comm::Mesh::Axis> one_axis(const SequenceConfig& config) {
  return {comm::Mesh::sequence("sequence", static_cast<int>(config.size))};
}

/// Returns the axes of the ring of `groups` equal groups of neighbouring ranks. With sequence.node this is a ring over
/// nodes of rings within them.
std::vector<comm::Mesh::Axis> ring_of(const SequenceConfig& c, int64_t groups) {
  const std::vector<std::string> names = ring_axes(c);
  if (c.node == 0) return {comm::Mesh::sequence(names[0], static_cast<int>(groups))};
  const int64_t members = c.size / groups;
  require(
      c.size % c.node == 0 && c.node % members == 0, "parallel",
      "sequence.node, the ranks of a node, must divide sequence.size and hold whole groups of sequence.ulysses: got ",
      c.node, " of ", c.size, ", ulysses ", members);
  return {comm::Mesh::sequence(names[0], static_cast<int>(c.size / c.node)),
          comm::Mesh::sequence(names[1], static_cast<int>(c.node / members))};
}

template <class Modes>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for_each_sequence_mode<Modes>([&](auto mode) { names.emplace_back(mode.name); });
  return names;
}

}  // namespace

void SequenceConfig::fields(Fields& f) {
  f.integer(
      "size", size, "ranks",
      "number of ranks that split the tokens of each row, in zigzag order; the possible context length grows with it",
      1, 65536);
  f.choice("mode", mode, all_sequence_mode_names(),
           "exchange of keys and queries between ranks; docs/how-to/choose-a-layout.md says when to use which");
  f.integer("ulysses", ulysses, "ranks",
            "number of neighbouring ranks that exchange heads, for instance those of a node (usp); the size / ulysses "
            "groups pass keys around a ring",
            1, 65536);
  f.integer("node", node, "ranks",
            "number of sequence ranks per node, each tensor.size processes (ring, usp): keys circulate within a node "
            "while those of the next node are in transfer; 0 = one ring over all ranks",
            0, 65536);
  f.flag("overlap", overlap,
         "a rank computes while its alignment is exchanged (axial: Duality Async); off and on give the same numbers");
}

std::vector<comm::Mesh::Axis> SequenceGather::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceUlysses::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceRing::axes(const SequenceConfig& c) { return ring_of(c, c.size); }
std::vector<comm::Mesh::Axis> SequenceSelfAttention::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceDsp::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceAxial::axes(const SequenceConfig& c) { return one_axis(c); }
std::vector<comm::Mesh::Axis> SequenceUsp::axes(const SequenceConfig& c) {
  require(c.size % c.ulysses == 0, "parallel", "sequence.ulysses must divide sequence.size: got ", c.ulysses, " of ",
          c.size);
  std::vector<comm::Mesh::Axis> axes = ring_of(c, c.size / c.ulysses);
  axes.push_back(comm::Mesh::sequence("ulysses", static_cast<int>(c.ulysses)));
  return axes;
}

std::vector<std::string> ring_axes(const SequenceConfig& config) {
  if (config.node > 0) return {"outer", "inner"};
  return {config.mode == SequenceUsp::name ? "ring" : "sequence"};
}

std::vector<std::string> sequence_mode_names() { return names_of<SequenceModes>(); }

std::vector<std::string> all_sequence_mode_names() { return names_of<AllSequenceModes>(); }

bool switches_axes(const SequenceConfig& config) { return config.size > 1 && config.mode == SequenceDsp::name; }

bool is_axial(const SequenceConfig& config) { return config.size > 1 && config.mode == SequenceAxial::name; }

std::vector<comm::Mesh::Axis> sequence_axes(const SequenceConfig& config) {
  require(config.mode == SequenceUsp::name || config.ulysses == 1, "parallel", "sequence.ulysses needs mode usp: got ",
          config.ulysses, " with mode ", config.mode);
  const bool has_ring = config.mode == SequenceRing::name || config.mode == SequenceUsp::name;
  require(has_ring || config.node == 0, "parallel", "sequence.node needs mode ring or usp: got ", config.node,
          " with mode ", config.mode);
  require(config.overlap || config.mode == SequenceAxial::name, "parallel",
          "sequence.overlap = false needs mode axial: got mode ", config.mode,
          "; leave it out, because other modes choose themselves what overlaps");
  return with_sequence_mode<AllSequenceModes>(config, [&](auto mode) { return mode.axes(config); });
}

void check_heads(const SequenceConfig& config, int64_t heads) {
  sequence_axes(config);  // refuses configurations that no mode supports
  const int64_t ranks =
      with_sequence_mode<AllSequenceModes>(config, [&](auto mode) { return mode.head_parts(config); });
  require(heads % ranks == 0, "parallel", "the ", heads, " attention heads of a rank must be divisible by the ", ranks,
          " ranks that exchange tokens for heads (sequence.mode ulysses, usp); use another number of ranks, or mode "
          "ring or gather, which have no such limit");
}

void check_axis(int64_t ranks, int64_t size, const char* name) {
  require(size >= ranks, "parallel", "with sequence.mode dsp each of the ", ranks,
          " ranks of parallel.sequence must have a part of both axes: got ", size, " ", name,
          "; use fewer ranks, or mode ulysses or ring, which split one axis");
}

void check_sequence(const SequenceConfig& config, int64_t tokens, int64_t shares) {
  sequence_axes(config);  // refuses configurations that no mode supports
  if (config.size == 1) return;
  require(shares == 1 || !switches_axes(config), "parallel",
          "sequence.mode dsp moves whole tokens between ranks, and tensor.sequence splits those of a rank further: got "
          "both; set tensor.sequence = false");
  if (switches_axes(config)) return check_axis(config.size, tokens, "places");
  require(shares == 1 || !is_axial(config), "parallel",
          "sequence.mode axial cuts representations of which tensor.sequence would cut the tokens: got both; set "
          "tensor.sequence = false");
  require(tokens >= config.size, "parallel", "each of the ", config.size,
          " ranks of parallel.sequence must have a token of each row: got rows of ", tokens,
          "; raise data.sequence, or use fewer ranks");
  const int64_t runs = 2 * config.size * shares, nearest = std::max<int64_t>(1, (tokens + runs / 2) / runs) * runs;
  require(shares == 1 || tokens % runs == 0, "parallel",
          "with tensor.sequence the tokens of a row must be divisible by 2 * ", config.size, " (sequence.size) * ",
          shares, " (tensor.size): got ", tokens, "; nearest: ", nearest);
}

}  // namespace colossal::parallel
