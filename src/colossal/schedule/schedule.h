// A pipeline schedule as data: for each rank the list of what it does, in order. Pure functions make these lists, one
// checker proves them, one simulator times them, one executor (parallel/pipeline) runs them.
//
// Words: the model is a chain of S stages; a rank holds `chunks` of them. A pipe is one copy of the chain: there is
//        one, but two for Chimera, whose second copy runs through the ranks backwards. Every micro-batch belongs to one
//        pipe.
#pragma once
#include <string>
#include <vector>

namespace colossal::schedule {

enum class Action {
  Forward,
  Backward,         ///< gradients of input and weights at once
  BackwardInput,    ///< of the input alone: what the stage before waits for
  BackwardWeight,   ///< the rest of it, any time later
  SendForward,      ///< hidden state of (micro_batch, chunk) to `peer`, which holds the next stage
  ReceiveForward,   ///< hidden state that (micro_batch, chunk) starts from
  SendBackward,     ///< gradient of the input of (micro_batch, chunk) to `peer`, which holds the stage before
  ReceiveBackward,  ///< gradient of the output of (micro_batch, chunk)
  /// Gradients of a chunk over its copies (data parallel ranks, the other pipe): after the chunk's last backward
  Reduce,
  Update,  ///< of the rank's parameters: last
};

const char* to_string(Action action);
bool is_compute(Action action);   ///< the first four
bool is_backward(Action action);  ///< Backward, BackwardInput
bool is_send(Action action);
bool is_receive(Action action);
bool is_transfer(Action action);  ///< a send or a receive

struct Step {
  Action action;
  int micro_batch = -1;  ///< -1: none (Reduce, Update)
  int chunk = -1;        ///< of this rank; -1: none (Update)
  int peer = -1;         ///< rank of the pipeline, of sends and receives
  bool operator==(const Step&) const = default;
};

/// "F3" for Forward of micro-batch 3 where a rank holds one chunk, "F3b" for its second chunk where it holds several; B
/// (Backward, BackwardInput) and W (BackwardWeight) likewise; "SendForward 3b to 1"; "Reduce b"; "Update".
std::string to_string(const Step& step, int chunks);

/// Where the stages of the model are.
class Placement {
 public:
  /// Stage k on rank k % ranks: plain (one chunk) and interleaved schedules
  static Placement looped(int ranks, int chunks);
  /// Down the ranks, up again, ...: V-schedules (two chunks), Hanayo's waves
  static Placement zigzag(int ranks, int chunks);
  static Placement opposed(int ranks);  ///< Chimera: chunk 0 of pipe 0 downwards, chunk 1 of pipe 1 upwards

  int ranks() const { return ranks_; }
  int chunks() const { return chunks_; }  ///< stages that a rank holds
  int pipes() const { return pipes_; }
  int stages() const { return ranks_ * chunks_ / pipes_; }  ///< of one pipe
  int rank_of(int pipe, int stage) const;
  int chunk_of(int pipe, int stage) const;
  int stage_of(int rank, int chunk) const;
  int pipe_of(int chunk) const;
  bool operator==(const Placement&) const = default;

 private:
  enum class Kind { Looped, Zigzag, Opposed };
  Placement(Kind kind, int ranks, int chunks, int pipes) : kind_(kind), ranks_(ranks), chunks_(chunks), pipes_(pipes) {}
  Kind kind_;
  int ranks_, chunks_, pipes_;
};

/// The steps of each rank, in their order.
using Lists = std::vector<std::vector<Step>>;

struct Schedule {
  std::string name;
  Placement placement;
  int micro_batches;  ///< Chimera: the first half belongs to pipe 0, the second to pipe 1
  Lists ranks;

  int pipe_of(int micro_batch) const { return placement.pipes() == 1 ? 0 : micro_batch * 2 / micro_batches; }
};

}  // namespace colossal::schedule
