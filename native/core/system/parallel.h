// Tasks on all cores: parallel_for(threads, tasks, fn) calls fn(task) once for every task below `tasks`.
//
// The caller works too; up to threads - 1 workers of one pool help it. Which thread takes which task is open, so a task
// must write only what is its own: then results never depend on the number of threads. Calls may come from several
// threads at once and from within a task (the caller of a call always finishes it, with or without help). Of tasks that
// throw, the one with the lowest number decides what the caller sees; later ones may have run.
//
// Stages share the cores. Threads that compute outside the pool, such as those that extract batches ahead of training,
// say so (WorkerPool::Elsewhere), and a call takes only helpers for whom they leave a core. So whoever is behind gets
// the cores: training takes all of them once enough batches are ready, and extraction once training waits for a batch.
//
// Idle threads sleep, but look out for kLookOut first: a training step is some eight calls one after the other, and
// waking a thread takes as long as its share of such a call.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <list>
#include <mutex>
#include <thread>

#include "core/system/usable_cores.h"

namespace cb {

class WorkerPool {
 public:
  static constexpr size_t kMostWorkers = 255;
  static constexpr std::chrono::microseconds kLookOut{50};

  // A forked child has none of its parent's threads: it gets a pool of its own, the parent's is left alone.
  static WorkerPool& shared() {
    static std::atomic<WorkerPool*> pool{nullptr};
    WorkerPool* p = pool.load(std::memory_order_acquire);
    while (!p || p->process_ != getpid()) {
      auto* fresh = new WorkerPool;
      if (pool.compare_exchange_strong(p, fresh, std::memory_order_acq_rel)) return *fresh;
      delete fresh;
    }
    return *p;
  }

  // While it lives, this thread counts as one that keeps a core busy outside the pool.
  class Elsewhere {
   public:
    Elsewhere() : pool_(shared()) { pool_.elsewhere_.fetch_add(1, std::memory_order_relaxed); }
    ~Elsewhere() { pool_.elsewhere_.fetch_sub(1, std::memory_order_relaxed); }
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;

   private:
    WorkerPool& pool_;
  };

  // How many helpers the parallel calls of one thread asked for and got, for benchmarks.
  struct Calls {
    size_t calls = 0;
    size_t asked = 0;  // helpers that the calls asked for
    size_t room = 0;   // helpers among them for which other stages left a core
    size_t came = 0;   // helpers among those that came before all tasks were taken
  };
  static Calls& calls_of_this_thread() {
    thread_local Calls calls;
    return calls;
  }

  template <class F>
  void run(size_t helpers, size_t tasks, F& fn) {
    Job job;
    job.call = [](void* f, size_t task) { (*static_cast<F*>(f))(task); };
    job.fn = &fn;
    job.tasks = tasks;
    size_t wanted = std::min({helpers, tasks - 1, kMostWorkers});
    Calls& calls = calls_of_this_thread();
    ++calls.calls;
    calls.asked += wanted;
    std::list<Job*>::iterator place;
    size_t asleep = 0;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      wanted = std::min(wanted, room());
      job.wanted = wanted;
      calls.room += wanted;
      while (workers_ < wanted) {
        std::thread([this] { work(); }).detach();
        ++workers_;
      }
      place = jobs_.insert(jobs_.end(), &job);
      welcome_ += wanted;
      asleep = asleep_;
    }
    if (asleep <= wanted) {
      if (asleep) wake_.notify_all();
    } else {
      for (size_t k = 0; k < wanted; ++k) wake_.notify_one();
    }
    job.drain(mutex_);
    std::unique_lock<std::mutex> hold(mutex_);
    welcome_ -= job.wanted;
    calls.came += wanted - job.wanted;
    jobs_.erase(place);
    if (job.active) {
      hold.unlock();
      look_out([&] { return job.active == 0; });
      hold.lock();
    }
    done_.wait(hold, [&] { return job.active == 0; });
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  struct Job {
    void (*call)(void*, size_t) = nullptr;
    void* fn = nullptr;
    size_t tasks = 0;
    std::atomic<size_t> next{0};
    size_t wanted = 0;               // helpers still welcome; under the pool's lock
    std::atomic<size_t> active = 0;  // helpers at work; written under the pool's lock
    std::exception_ptr error;        // of task `failed`; under the pool's lock
    size_t failed = 0;

    void drain(std::mutex& mutex) {
      for (size_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        try {
          call(fn, task);
        } catch (...) {
          std::lock_guard<std::mutex> hold(mutex);
          if (!error || task < failed) {
            error = std::current_exception();
            failed = task;
          }
        }
      }
    }
  };

  // Helpers for whom other stages leave a core; under the lock. Where no other stage computes, a caller gets as many as
  // it asks for, more than there are cores too.
  size_t room() {
    const size_t busy = elsewhere_.load(std::memory_order_relaxed);
    if (!busy) return kMostWorkers;
    const auto now = std::chrono::steady_clock::now();
    if (!cores_ || now - counted_ > std::chrono::seconds(1)) {  // cores may be taken away while the process runs
      cores_ = usable_cores();
      counted_ = now;
    }
    return cores_ > busy + 1 ? cores_ - busy - 1 : 0;
  }

  // Wait, awake, until `met` or kLookOut is over.
  template <class F>
  static void look_out(F&& met) {
    const auto end = std::chrono::steady_clock::now() + kLookOut;
    while (!met() && std::chrono::steady_clock::now() < end) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      __asm__ __volatile__("isb");
#endif
    }
  }

  void work() {
    std::unique_lock<std::mutex> hold(mutex_);
    for (bool looked_out = false;;) {
      auto job = std::find_if(jobs_.begin(), jobs_.end(), [](Job* j) { return j->wanted > 0; });
      if (job == jobs_.end()) {
        if (!looked_out) {
          looked_out = true;
          hold.unlock();
          look_out([&] { return welcome_ > 0; });
          hold.lock();
          continue;
        }
        ++asleep_;
        wake_.wait(hold);
        --asleep_;
        continue;
      }
      looked_out = false;
      Job* j = *job;
      --j->wanted;
      --welcome_;
      ++j->active;
      hold.unlock();
      j->drain(mutex_);
      hold.lock();
      if (--j->active == 0) done_.notify_all();
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::list<Job*> jobs_;
  size_t workers_ = 0, asleep_ = 0;
  std::atomic<size_t> welcome_ = 0;  // helpers, at all jobs together; written under the lock
  std::atomic<size_t> elsewhere_ = 0;
  size_t cores_ = 0;  // usable, when they were counted last
  std::chrono::steady_clock::time_point counted_;
};

template <class F>
void parallel_for(size_t threads, size_t tasks, F&& fn) {
  if (std::min(threads, tasks) <= 1) {  // this thread runs all tasks, and the first error ends the loop
    for (size_t task = 0; task < tasks; ++task) fn(task);
    return;
  }
  WorkerPool::shared().run(threads - 1, tasks, fn);
}

}  // namespace cb
