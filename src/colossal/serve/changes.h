// Changes to the work of a replica between two steps, which rank 0 broadcasts to the other ranks.
//
//   const std::string bytes = to_bytes(changes);          // on rank 0; "" if there are none
//   const serve::Changes same = changes_of(bytes);        // on the other ranks
#pragma once
#include <string>
#include <vector>

#include "colossal/serve/replica.h"

namespace colossal::serve {

/// A generation to add. `after` replaces Generation::after.
struct NewGeneration {
  Ticket ticket = 0;
  Ticket after = 0;  ///< ticket of the first choice of the same prompt; 0 = none
  Generation generation{};
};

/// An embedding to add.
struct NewEmbedding {
  Ticket ticket = 0;
  Embedding embedding{};
};

/// All ranks of a replica apply the same changes in the same order: cancellations first, then additions.
struct Changes {
  std::vector<NewGeneration> generations{};
  std::vector<NewEmbedding> embeddings{};
  std::vector<Ticket> cancelled{};
  std::vector<std::string> schemas{};  ///< JSON schemas to compile aside (Replica::prepare)
  bool ends = false;                   ///< the loops of all ranks return

  bool is_empty() const {
    return generations.empty() && embeddings.empty() && cancelled.empty() && schemas.empty() && !ends;
  }
};

/// Returns the changes as bytes for ranks of the same program, without the functions. "" = no changes.
std::string to_bytes(const Changes& changes);
/// Returns the changes of to_bytes(); their functions are empty. Numbers keep all bits.
/// Errors ("serve"): bytes that to_bytes() did not write.
Changes changes_of(const std::string& bytes);

}  // namespace colossal::serve
