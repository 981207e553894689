// Which operators of a pass run in a loop over blocks: data that a planner writes and one loop executes.
//
//   const ChunkPlan plan = read_chunks("chunks.json");
//   for (const ChunkRegion& r : plan.regions) std::printf("%s along %s\n", r.region.c_str(), r.dim.c_str());
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::auto_chunk {

/// Operators that run together on blocks of one dimension.
struct ChunkRegion {
  std::string region;  ///< name of the layer: what the names of its parameters have in common
  std::string dim;     ///< name of the dimension
  int64_t size = 1;    ///< elements of a block; the last one may have fewer
  /// Names of the nodes in the loop, and the dimension of each one's output that is cut.
  std::vector<std::string> nodes;
  std::vector<int64_t> cuts;
  /// Nodes of the loop that also run once before it, because operators outside of the loop read them.
  std::vector<std::string> repeated;

  void fields(Fields& f);
  bool operator==(const ChunkRegion&) const = default;
};

/// Regions in the order in which they are cut out of the list of operators.
struct ChunkPlan {
  std::vector<ChunkRegion> regions;

  void fields(Fields& f);
  bool operator==(const ChunkPlan&) const = default;
};

/// Returns the plan as JSON text.
std::string print_chunks(const ChunkPlan& plan);
/// Writes print_chunks() to a file. Errors ("file"): it cannot be written.
void write_chunks(const ChunkPlan& plan, const std::string& path);
/// Reads what write_chunks() writes. Errors: "chunks" with the file and the member; "file" if it cannot be read.
ChunkPlan read_chunks(const std::string& path);

}  // namespace colossal::auto_chunk
